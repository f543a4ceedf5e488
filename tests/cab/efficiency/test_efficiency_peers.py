from __future__ import annotations

import sys
import warnings
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from cab.efficiency import peers
from cab.efficiency.peers import PEERS, Peer, PeerSubject, dense, find_peers
from cab.efficiency.peers.recurrent import InOurLayer
from cab.efficiency.protocol_default import measure_length
from cab.efficiency.setting import Setting
from cab.efficiency.subjects import AttentionSubject, has_projections
from cab.errors import UserError
from cab.patterns import Pattern
from cab.registry.registries import ATTENTIONS

SMALL = Setting(batch_size=2, embed_dim=8, num_heads=2, repeats=2)
VANILLA = AttentionSubject.parse("vanilla")


def torch_peer() -> PeerSubject:
    (peer,), _ = find_peers([VANILLA])
    return peer


@pytest.mark.parametrize("pattern", Pattern)
def test_the_peer_of_vanilla_is_the_same_function(pattern: Pattern) -> None:
    ours, theirs = VANILLA.build(pattern, SMALL), torch_peer().build(pattern, SMALL)
    state = ours.state_dict()
    theirs.module.load_state_dict(
        {
            "in_proj_weight": torch.cat([state[f"{name}_proj.weight"] for name in "qkv"]),
            "in_proj_bias": torch.cat([state[f"{name}_proj.bias"] for name in "qkv"]),
            "out_proj.weight": state["out_proj.weight"],
            "out_proj.bias": state["out_proj.bias"],
        }
    )
    x, source = torch.randn(2, 7, 8), torch.randn(2, 7, 8)
    inputs = (x, source, source) if pattern.is_cross else (x,)
    torch.testing.assert_close(theirs(*inputs), ours(*inputs), rtol=1e-4, atol=1e-5)


def test_a_peer_is_compared_in_the_same_rounds() -> None:
    costs = measure_length([VANILLA, torch_peer()], Pattern.NS, "forward", 9, SMALL)
    assert [(cost.attention, cost.kind) for cost in costs] == [
        ("vanilla", "attention"),
        ("vanilla@torch", "third_party"),
    ]
    assert costs[0].best_third_party == "vanilla@torch"
    assert costs[0].speedup_vs_third_party == costs[1].relative_to_softmax
    assert costs[0].bytes_ratio == costs[0].bytes / costs[1].bytes


def test_a_peer_that_is_not_installed_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        peers, "PEERS", (Peer("local", "some-package", "cab_has_no_such_module", (Pattern.NS,), dense.local),)
    )
    found, notes = find_peers([AttentionSubject.parse("local"), AttentionSubject.parse("s4d")])
    assert found == []
    assert notes == [
        "local: some-package is not installed; run `pip install some-package`",
        "no third-party implementation is known for: s4d",
    ]


def test_a_peer_gets_the_options_of_ours_and_greets_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {}

    class LocalAttention(nn.Module):
        def __init__(self, **options: object) -> None:
            super().__init__()
            given.update(options)
            print("welcome")  # noqa: T201

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # noqa: ARG002
            given["shape"] = tuple(q.shape)
            return v

    module = ModuleType("local_attention")
    module.LocalAttention = LocalAttention
    monkeypatch.setitem(sys.modules, "local_attention", module)
    subject = PeerSubject(
        next(peer for peer in PEERS if peer.attention == "local"), AttentionSubject.parse("local:window_size=128")
    )
    output = subject.build(Pattern.CS, SMALL)(torch.randn(2, 5, 8))
    assert output.shape == (2, 5, 8)
    assert (given["window_size"], given["causal"], given["shape"]) == (64, True, (2, 2, 5, 4))
    assert subject.label == "local:window_size=128@local-attention"
    assert capsys.readouterr().out == ""


def test_patterns_are_those_of_both() -> None:
    peer = Peer("local", "p", "p", (Pattern.NS, Pattern.NC), dense.local)
    assert PeerSubject(peer, AttentionSubject.parse("local")).patterns == (Pattern.NS,)


# --- every peer -----------------------------------------------------------------------------------------------

LENGTH = 256
SIZES = {
    "bigbird": "block_size=16",
    "compressive": "segment=64:memory=64:compressed=32",
    "longformer": "window=32",
    "nsa": "block_size=16:num_blocks=4:window_size=32:compress_size=16:compress_stride=8",
    "routing": "num_clusters=8:window=64",
    "set_transformer": "feedforward=false",
}
"""Options for 256 tokens, where those of the attention are for more."""

MEDIUM = Setting(batch_size=2, embed_dim=128, num_heads=2)
NO_GRADIENT = {("rwkv6", "fla-naive-chunk")}
HERE = [peer for peer in PEERS if peer.exists_here and peer.is_installed]
CASES = [(peer, pattern) for peer in HERE if not peer.needs_cuda for pattern in peer.patterns]


def subject_of(peer: Peer) -> PeerSubject:
    return PeerSubject(
        peer, AttentionSubject.parse(":".join(filter(None, (peer.attention, SIZES.get(peer.attention)))))
    )


@pytest.mark.parametrize(("peer", "pattern"), CASES, ids=[f"{a.attention}-{a.name}-{b}" for a, b in CASES])
def test_a_peer_is_of_its_attention_s_shape_and_has_gradients(peer: Peer, pattern: Pattern) -> None:
    subject = subject_of(peer)
    module, ours = subject.build(pattern, MEDIUM), subject.ours.build(pattern, MEDIUM)
    assert has_projections(module) == has_projections(ours)
    x, source = (torch.randn(2, LENGTH, 128, requires_grad=True) for _ in range(2))
    if isinstance(module, InOurLayer):
        check_outputs_are_equal(module, ours, x.detach())
    inputs = (x, source, source) if pattern.is_cross else (x,)
    if (peer.attention, peer.name) in NO_GRADIENT:
        with pytest.raises(UserError, match="backward pass"):
            module(*inputs)
        with torch.no_grad():
            assert module(*inputs).shape == x.shape
        return
    output = module(*inputs)
    assert output.shape == x.shape
    assert output.isfinite().all()
    output.backward(torch.randn_like(output))
    grads = [x.grad, *(parameter.grad for parameter in module.parameters()), *([source.grad] * pattern.is_cross)]
    assert all(grad.isfinite().all() for grad in grads if grad is not None)
    assert x.grad is not None
    if pattern is Pattern.CS:
        x.grad = None
        module.eval()(x)[:, :100].square().sum().backward()
        torch.testing.assert_close(x.grad[:, 100:], torch.zeros_like(x.grad[:, 100:]))


@torch.no_grad()
def check_outputs_are_equal(theirs: nn.Module, ours: nn.Module, x: Tensor) -> None:
    for parameter in ours.parameters():
        parameter += 0.02 * torch.randn_like(parameter)
    theirs.layer.load_state_dict(ours.state_dict())
    torch.testing.assert_close(theirs(x), ours(x), rtol=1e-3, atol=1e-4)


def test_peers_have_names_of_their_own_and_patterns_of_ours() -> None:
    names = [(peer.attention, peer.name) for peer in PEERS]
    assert len(set(names)) == len(names)
    assert all(set(peer.patterns) <= set(ATTENTIONS.get(peer.attention).patterns) for peer in PEERS)


def test_every_peer_is_found_or_a_line_says_how_to_get_it() -> None:
    """What is not installed is not tested here: the warning names it."""
    found, notes = find_peers(AttentionSubject.parse(name) for name in dict.fromkeys(peer.attention for peer in PEERS))
    missing = sorted({peer.package for peer in PEERS if peer.exists_here and not peer.is_installed})
    assert [subject.peer for subject in found] == sorted(HERE, key=lambda peer: names_in_order(peer.attention))
    assert {note.rpartition("pip install ")[2].rstrip("`") for note in notes} == set(missing)
    if missing:
        warnings.warn(f"peers that were not tested: pip install {' '.join(missing)}", stacklevel=1)


def names_in_order(name: str) -> int:
    return next(place for place, peer in enumerate(PEERS) if peer.attention == name)


def test_what_a_peer_does_not_take_is_a_row() -> None:
    """A length of the wrong multiple, and an option that it has not."""
    peer = next(peer for peer in PEERS if (peer.attention, peer.package) == ("longformer", "transformers"))
    for options, why in (("window=4", "multiple of 8, got 9"), ("dilation=2", "dilation=2 is not supported")):
        subject = PeerSubject(peer, AttentionSubject.parse(f"longformer:{options}"))
        (cost,) = measure_length([subject], Pattern.NS, "forward", 9, SMALL)
        assert cost.status == "unsupported"
        assert why in cost.detail


def test_a_kernel_in_our_layer_gives_what_ours_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of theirs, written out here, with gates, decays, norms and a convolution of ours around it."""

    def naive_recurrent_gla(q: Tensor, k: Tensor, v: Tensor, gk: Tensor) -> tuple[Tensor, None]:
        memory, outputs = torch.zeros(len(q), q.shape[2], q.shape[3], v.shape[3]), []
        for t in range(q.shape[1]):
            memory = memory * gk[:, t].exp().unsqueeze(-1) + k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
            outputs.append((q[:, t].unsqueeze(-1) * memory).sum(dim=-2) * q.shape[-1] ** -0.5)
        return torch.stack(outputs, dim=1), None

    module = ModuleType("fla.ops.gla.naive")
    module.naive_recurrent_gla = naive_recurrent_gla
    monkeypatch.setitem(sys.modules, module.__name__, module)
    subject = PeerSubject(
        next(peer for peer in PEERS if peer.attention == "gla"), AttentionSubject.parse("gla:conv_size=3")
    )
    ours, theirs = subject.ours.build(Pattern.CS, SMALL), subject.build(Pattern.CS, SMALL)
    theirs.layer.load_state_dict(ours.state_dict())
    x = torch.randn(2, 7, 8)
    torch.testing.assert_close(theirs(x), ours(x), rtol=1e-4, atol=1e-5)
    assert subject.label == "gla:conv_size=3@fla-naive-recurrent"
