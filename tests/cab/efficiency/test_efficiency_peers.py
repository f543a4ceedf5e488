from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from cab.efficiency import peers
from cab.efficiency.own import measure_length
from cab.efficiency.peers import PEERS, Peer, PeerSubject, find_peers
from cab.efficiency.setting import Setting
from cab.efficiency.subjects import AttentionSubject
from cab.patterns import Pattern

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
    assert [(cost.attention, cost.kind) for cost in costs] == [("vanilla", "attention"), ("vanilla@torch", "peer")]
    assert costs[0].best_peer == "vanilla@torch"
    assert costs[0].faster == costs[1].relative
    assert costs[0].bytes_ratio == costs[0].bytes / costs[1].bytes


def test_a_peer_that_is_not_installed_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        peers, "PEERS", (Peer("local", "some-package", "cab_has_no_such_module", (Pattern.NS,), peers.local),)
    )
    found, notes = find_peers([AttentionSubject.parse("local"), AttentionSubject.parse("s4d")])
    assert found == []
    assert notes == [
        "local: some-package is not installed (pip install some-package)",
        "no implementation that pip can install is known for: s4d",
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
    peer = Peer("local", "p", "p", (Pattern.NS, Pattern.NC), peers.local)
    assert PeerSubject(peer, AttentionSubject.parse("local")).patterns == (Pattern.NS,)
