"""Recurrent methods: readable forms, decoding, both ends of their decays, what they are limits of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from attentions.rwkv import TokenShift
from cab import Attention, LayerPosition, PaddingMasks, UserError, build_attention
from tests.attentions.agreement import assert_forms_agree, make, with_output

CONVOLVED = ["retention", "lightning", "gla", "hgrn2", "ssd", "deltanet", "gated_deltanet"]
METHODS = [*CONVOLVED, "rwkv6", "rwkv7"]


def convolved(name: str) -> dict[str, Any]:
    """With a short convolution, for the methods that have one."""
    return {"conv_size": 4} if name in CONVOLVED else {}


@pytest.mark.parametrize("name", METHODS)
def test_fast_form_is_the_readable_one_across_blocks_and_spans(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attentions.kernels.chunks.CPU_TOKENS", 64 * 15)  # spans of one block
    assert_forms_agree(make(name, "CS", **convolved(name)), 101, 0)


# --- precision --------------------------------------------------------------------------------------------


EXTREMES: dict[str, tuple[str, float, float]] = {  # a parameter ("" for the keys), and values at both ends
    "gla": ("decay_map.1.bias", 100.0, -3000.0),
    "ssd": ("log_rate", -20.0, 9.0),
    "gated_deltanet": ("log_rate", -20.0, 9.0),
    "hgrn2": ("", 8.0, -80.0),
    "rwkv6": ("decay", -20.0, 100.0),
    "rwkv7": ("decay", -100.0, 100.0),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("end", [1, 2])
@pytest.mark.parametrize("name", EXTREMES)
def test_both_ends_of_the_decays_in_low_precision(name: str, end: int, dtype: torch.dtype) -> None:
    """4,096 tokens whose heads are in the lower precision: within 3 units of its rounding of float32's, and finite."""
    module = build_attention(name, pattern="CS", embed_dim=8, num_heads=1)
    with torch.no_grad():
        parameter = EXTREMES[name][0]
        if parameter:
            dict(module.named_parameters())[parameter].fill_(EXTREMES[name][end])
        x = torch.randn(1, 4096, 8)
        query, key, value = module.project(x, x, x)
        heads: Sequence[Tensor] = (query, key if parameter else key + EXTREMES[name][end], value)
        extras = {**module.query_side_inputs(x), **module.key_side_inputs(x)}
        if isinstance(module, TokenShift):
            heads, extras = module.inputs(x, x.roll(1, dims=1))
        extras = {key: y.to(dtype) for key, y in extras.items()}
        heads = [y.to(dtype) for y in heads]
    leaves = [y.clone().requires_grad_() for y in heads]
    output = module.attend(*leaves, PaddingMasks(), **extras)
    exact = module.attend(*(y.float() for y in heads), PaddingMasks(), **{key: y.float() for key, y in extras.items()})
    assert output.dtype == dtype
    assert (output.float() - exact).abs().max() <= 3 * torch.finfo(dtype).eps * exact.abs().max()
    gradients = torch.autograd.grad(output.float().sum(), leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)


# --- limits and defaults ----------------------------------------------------------------------------------


def shared_with(module: Attention, other: Attention) -> None:
    """Copy the parameters that both have."""
    wanted = module.state_dict()
    wanted.update({name: x for name, x in other.state_dict().items() if name in wanted})
    module.load_state_dict(wanted)


def test_gates_that_forget_nothing_leave_a_sum() -> None:
    module = make("gla", "CS", key_expansion=1.0)
    with torch.no_grad():
        module.decay_map[1].weight.zero_()
        module.decay_map[1].bias.fill_(50.0)
    x = torch.randn(1, 30, 24, dtype=torch.float64)
    query, key, value = module.project(x, x, x)
    expected = (query @ key.mT * module.scale).tril() @ value
    gate = module.query_side_inputs(x)
    output = module.finish(expected, value, gate)
    torch.testing.assert_close(module(x), module.out_proj(module.merge_heads(output)))


def test_only_the_first_layer_of_lightning_encodes_positions() -> None:
    """With theta of zero nothing is encoded; scores depend on the distance."""
    first, without = (make("lightning", "CS", layer_position=LayerPosition(0, 2), lrpe=lrpe) for lrpe in (True, False))
    assert (
        build_attention("lightning", pattern="CS", embed_dim=24, num_heads=3, layer_position=LayerPosition(1, 2)).theta
        is None
    )
    shared_with(without, first)
    x = torch.randn(1, 30, 24, dtype=torch.float64)
    assert (first(x) - without(x)).norm() > 1e-3 * first(x).norm()
    query, key, value = (y[:, :, :1].expand(-1, -1, 30, -1) for y in first.project(x, x, x))
    terms = first.terms(query, key, value, {}, torch.arange(30)[None])
    scores = terms.query @ terms.key.mT
    torch.testing.assert_close(scores[..., 1:, 1:], scores[..., :-1, :-1])
    with torch.no_grad():
        first.theta.zero_()
    torch.testing.assert_close(first(x), without(x))


def test_rwkv7_has_gradients_in_a_backward_pass_under_autocast() -> None:
    """Its blocks divide decays by each other: factors that float16 has no room for would be infinite there."""
    module = with_output(build_attention("rwkv7", pattern="CS", embed_dim=24, num_heads=3))
    with torch.no_grad():
        module.decay.fill_(100.0)
    x = torch.randn(2, 70, 24, requires_grad=True)
    with torch.autocast("cpu", torch.float16):
        gradients = torch.autograd.grad(module(x).sum(), [x, *module.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert gradients[0].any()


def test_retention_needs_pairs_of_features() -> None:
    with pytest.raises(UserError, match="even"):
        build_attention("retention", pattern="CS", embed_dim=9, num_heads=3)
