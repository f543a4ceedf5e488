"""Softmax attention by FlexAttention where weights depend on positions, and which of torch's kernels run by name."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from attentions.kernels import softmax_attention as kernels, window_attention
from attentions.kernels.softmax_attention import Positions, positional_softmax
from cab import build_attention
from cab.errors import UnsupportedError
from cab.kernels import use, used
from tests.helpers.attentions.interpreter import run_on_a_cpu
from tests.helpers.attentions.trust import slow_unless_new

pytestmark = slow_unless_new("vanilla")

LENGTH, HEADS = 301, 4
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=torch.float64)
CASES = [
    Positions(is_causal=True, window=3),
    Positions(is_causal=True, window=129),
    Positions(is_causal=True, window=130, sinks=2, slopes=SLOPES),
    Positions(is_causal=True, window=1, sinks=140),
    Positions(is_causal=True, slopes=SLOPES),
    Positions(is_causal=False, slopes=SLOPES),
]


@pytest.mark.filterwarnings("ignore:.*without torch.compile:UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@pytest.mark.parametrize("positions", CASES)
def test_flex_agrees_with_masks(positions, kv_heads, monkeypatch):
    """With padding, of one row without an end; the tiles are those with a visible pair."""

    def flex(*inputs: Tensor, block_mask: Any, **options: Any) -> Tensor:
        wanted = create_block_mask(block_mask.mask_mod, 2, 1, LENGTH, LENGTH, device="cpu").to_dense()
        assert torch.equal(block_mask.to_dense()[0] != 0, wanted[0] != 0)
        return flex_attention(*inputs, block_mask=block_mask, **options)

    monkeypatch.setattr(kernels, "compiled_flex", lambda: flex)
    query = torch.randn(2, HEADS, LENGTH, 16, dtype=torch.float64)
    key, value = torch.randn(2, 2, kv_heads, LENGTH, 16, dtype=torch.float64).unbind()
    hidden = torch.zeros(2, LENGTH, dtype=torch.bool)
    hidden[1, 200:] = True
    inputs, options = (query, key, value, positions), {"hidden": hidden, "scale": 0.3}
    output = positional_softmax.backends[0].run(*inputs, **options)
    expected = positional_softmax.reference(*inputs, **options)
    compared = ~hidden if positions.is_causal else torch.ones_like(hidden)  # a causal window may hold padding alone
    torch.testing.assert_close(output.transpose(1, 2)[compared], expected.transpose(1, 2)[compared])


@pytest.mark.filterwarnings("ignore:.*without torch.compile:UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(("form", "has_slopes"), [("positions", False), ("slopes", True)])
def test_flex_is_tried_with_all_options(form, has_slopes, monkeypatch):
    """Shared keys, padding, a window and first tokens; a form that fails to compile does not hinder another."""
    tried: list[dict[str, Any]] = []

    def flex(query: Tensor, *_: Tensor, **options: Any) -> Tensor:
        tried.append(options)
        return query.clone()

    monkeypatch.setattr(kernels, "compiled_flex", lambda: flex)
    monkeypatch.setattr(window_attention, "_flex_works", {})
    run_on_a_cpu("flex", monkeypatch)
    slopes = torch.ones(2, dtype=torch.float64) if has_slopes else None
    query = torch.randn(1, 2, 130, 16)
    positional_softmax(query, query, query, Positions(is_causal=True, window=9, slopes=slopes))
    assert window_attention._flex_works == {(form, query.device, torch.float32, 16): True}
    trial, call = tried
    assert trial["enable_gqa"]
    assert not call["enable_gqa"]
    assert (trial["score_mod"] is not None) is (call["score_mod"] is not None) is has_slopes


@pytest.mark.parametrize("options", [{"window": 5}, {"positions": "alibi"}, {"window": 9, "sink_tokens": 2}, {}])
def test_flex_computes_what_depends_on_positions(options, monkeypatch):
    """Not in eager and flash, which have kernels of their own, and not with dropout or a few targets."""
    monkeypatch.setattr(window_attention, "flex_works", lambda *_: True)
    monkeypatch.setattr(positional_softmax.backends[0], "run", lambda query, *_, **__: query)
    run_on_a_cpu("flex", monkeypatch)
    for name, length, dropout, backend in (
        ("vanilla", 130, 0.0, "flex"), ("vanilla", 130, 0.1, "pytorch"), ("vanilla", 127, 0.0, "pytorch"),
        ("eager", 130, 0.0, None), ("flash", 130, 0.0, None),
    ):  # fmt: skip
        module = build_attention(name, pattern="CS", embed_dim=16, num_heads=2, dropout=dropout, **options)
        with used() as uses:
            module(torch.randn(1, length, 16))
        assert uses.counts["positional_softmax"] == ({backend: 1} if backend and options else {})


def test_kernels_of_torch_run_by_name_or_refuse(monkeypatch):
    module, x = build_attention("vanilla", pattern="NS", embed_dim=16, num_heads=2), torch.randn(2, 9, 16)
    hidden = torch.zeros(2, 9, dtype=torch.bool)
    with use("flash"), pytest.raises(UnsupportedError, match="flash does not compute softmax: not on cuda"):
        module(x)
    run_on_a_cpu("flash", monkeypatch)
    with used() as uses:
        module(x)
    assert uses.counts == {"softmax": {"pytorch": 1}}
    monkeypatch.setattr(torch.backends.cuda, "can_use_flash_attention", lambda params: params.attn_mask is None)
    with use("flash"), used() as uses, torch.autocast("cpu", torch.bfloat16):
        output = module(x)
        with pytest.raises(UnsupportedError, match="flash does not compute softmax: a mask"):
            module(x, query_padding_mask=hidden)
    assert uses.counts == {"softmax": {"flash": 1}}
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(output, module(x))
    with use("flash"), pytest.raises(UnsupportedError, match="float32"):
        module(x)
