"""Recurrent methods: what is kept alongside what is forgotten, and both ends of decays in low precision."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from attentions.kernels.recurrence import BLOCK, recurrence
from attentions.rwkv import TokenShift
from cab import PaddingMasks, build_attention
from tests.helpers.attentions.agreement import with_output
from tests.helpers.attentions.trust import slow_unless_new

ROWS, HEADS, KEYS, VALUES = 2, 3, 5, 4


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("kind", ["head", "feature"])
@pytest.mark.parametrize("rate", [-1e30, -200.0, -1e-7])
def test_digits_are_kept_alongside_what_is_forgotten(rate, kind):
    """float32 against float64: the rate at some tokens, slow decays at the others, through whole blocks."""
    heads = [drawn(ROWS, HEADS, 3 * BLOCK, width) for width in (KEYS, KEYS, VALUES)]
    log_decay = -torch.rand_like(heads[0]) / 100
    log_decay[:, :, ::7] = rate
    if kind == "head":
        log_decay = log_decay[..., 0]
    inputs = [x.float() for x in (*heads, log_decay, drawn(ROWS, HEADS, KEYS, VALUES))]
    narrow = recurrence(*inputs)
    for got, wanted in zip(narrow, recurrence(*(x.double() for x in inputs)), strict=True):
        assert (got - wanted).norm() < 1e-6 * wanted.norm()


EXTREMES: dict[str, tuple[str, float, float]] = {  # a parameter ("" for the keys), and values at both ends
    "gla": ("decay_map.1.bias", 100.0, -3000.0),
    **dict.fromkeys(("ssd", "comba", "deltaproduct", "gated_deltanet", "gated_deltanet_2"), ("log_rate", -20.0, 9.0)),
    "hgrn2": ("", 8.0, -80.0),
    "kda": ("log_rate", -20.0, 9.0),
    "mamba3": ("step_proj.bias", -20.0, 100.0),
    "mlstm": ("forget_proj.bias", 100.0, -100.0),
    "rwkv6": ("decay", -20.0, 100.0),
    "rwkv7": ("decay", -100.0, 100.0),
}


pytestmark = slow_unless_new(*EXTREMES)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("end", [1, 2])
@pytest.mark.parametrize("name", EXTREMES)
def test_both_ends_of_the_decays_in_low_precision(name, end, dtype):
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
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(output.float().sum(), leaves))


def test_rwkv7_has_gradients_in_a_backward_pass_under_autocast():
    """Its blocks divide decays by each other: factors that float16 has no room for would be infinite there."""
    module = with_output(build_attention("rwkv7", pattern="CS", embed_dim=24, num_heads=3))
    with torch.no_grad():
        module.decay.fill_(100.0)
    x = torch.randn(2, 70, 24, requires_grad=True)
    with torch.autocast("cpu", torch.float16):
        gradients = torch.autograd.grad(module(x).sum(), [x, *module.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert gradients[0].any()
