"""Recurrent methods: fast against readable forms across blocks, both ends of decays, layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from attentions.kernels.recurrence import BLOCK, recurrence
from attentions.rwkv import TokenShift
from cab import LayerPosition, PaddingMasks, UserError, build_attention
from tests.helpers.attentions.agreement import assert_forms_agree, make, with_output
from tests.helpers.attentions.trust import slow_unless_new

ROWS, HEADS, KEYS, VALUES = 2, 3, 5, 4
CONVOLVED = ["gla", "hgrn2", "ssd", "deltanet", "gated_deltanet", "deltaproduct", "kda", "gated_deltanet_2", "comba"]
METHODS = [*CONVOLVED, "retention", "lightning", "rwkv6", "rwkv7", "mamba3", "mlstm"]
pytestmark = slow_unless_new(*METHODS)


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("kind", ["head", "feature"])
@pytest.mark.parametrize("rate", [-1e30, -200.0, -1e-7])
def test_digits_are_kept_beside_what_is_forgotten(rate: float, kind: str) -> None:
    """float32 against float64: the rate at some tokens, slow decays at the others, through whole blocks."""
    length = 3 * BLOCK
    heads = [drawn(ROWS, HEADS, length, width) for width in (KEYS, KEYS, VALUES)]
    log_decay = -torch.rand_like(heads[0]) / 100
    log_decay[:, :, ::7] = rate
    if kind == "head":
        log_decay = log_decay[..., 0]
    state = drawn(ROWS, HEADS, KEYS, VALUES)
    inputs = [x.float() for x in (*heads, log_decay, state)]
    narrow = recurrence(*inputs)
    exact = recurrence(*(x.double() for x in inputs))
    for got, wanted in zip(narrow, exact, strict=True):
        assert (got - wanted).norm() < 1e-6 * wanted.norm()


def convolved(name: str) -> dict[str, Any]:
    """With a short convolution, for the methods that have one."""
    return {"short_convolution": 4} if name in CONVOLVED else {}


@pytest.mark.parametrize("name", METHODS)
def test_fast_form_is_the_readable_one_across_blocks_and_spans(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attentions.kernels.chunks.CPU_TOKENS", 64 * 15)  # spans of one block
    assert_forms_agree(make(name, "CS", **convolved(name)), 101, 0)


# --- precision --------------------------------------------------------------------------------------------


EXTREMES: dict[str, tuple[str, float, float]] = {  # a parameter ("" for the keys), and values at both ends
    "gla": ("decay_map.1.bias", 100.0, -3000.0),
    "ssd": ("log_rate", -20.0, 9.0),
    "comba": ("log_rate", -20.0, 9.0),
    "deltaproduct": ("log_rate", -20.0, 9.0),
    "gated_deltanet": ("log_rate", -20.0, 9.0),
    "gated_deltanet_2": ("log_rate", -20.0, 9.0),
    "hgrn2": ("", 8.0, -80.0),
    "kda": ("log_rate", -20.0, 9.0),
    "mamba3": ("step_proj.bias", -20.0, 100.0),
    "mlstm": ("forget_proj.bias", 100.0, -100.0),
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


def test_only_the_first_layer_of_lightning_encodes_positions() -> None:
    """Scores depend on the distance, and the outputs on the positions."""
    first, second = (make("lightning", "CS", layer_position=LayerPosition(index, 2)) for index in range(2))
    assert second.theta is None
    x = torch.randn(1, 30, 24, dtype=torch.float64)
    encoded = first(x)
    query, key, value = (y[:, :, :1].expand(-1, -1, 30, -1) for y in first.project(x, x, x))
    terms = first.terms(query, key, value, {}, torch.arange(30)[None])
    scores = terms.query @ terms.key.mT
    torch.testing.assert_close(scores[..., 1:, 1:], scores[..., :-1, :-1])
    with torch.no_grad():
        first.theta.zero_()
    assert (encoded - first(x)).norm() > 1e-3 * encoded.norm()


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
