"""The generalized delta rule in blocks is the recurrence, in float32 too, whatever it forgets."""

import functools

import pytest
import torch
from torch import Tensor

from attentions.kernels.delta_rule import generalized_delta_rule
from tests.helpers.attentions.agreement import with_gradients
from tests.helpers.attentions.trust import slow_unless_new

pytestmark = slow_unless_new("rwkv7")

ROWS, HEADS, KEYS, VALUES = 2, 3, 5, 4


def token_by_token(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    """S_t = exp(g_t) S_{t-1} - e_t (x) (r_t S_{t-1}) + k_t (x) v_t."""
    *tokens, state = inputs
    outputs = []
    for q, k, v, r, e, g in zip(*(x.unbind(2) for x in tokens), strict=True):
        found = torch.einsum("bhk,bhkv->bhv", r, state)
        state = g.exp()[..., None] * state - e[..., None] * found[..., None, :] + k[..., None] * v[..., None, :]
        outputs.append(torch.einsum("bhk,bhkv->bhv", q, state))
    return torch.stack(outputs, dim=2), state


def drawn_inputs(length: int, log_decay: Tensor, removal_decays: bool) -> list[Tensor]:
    """Draw q, k, v, r, e, g and S; a decayed r is that of a delta rule with one decay per feature."""
    q, k, r, share = (torch.randn(ROWS, HEADS, length, KEYS, dtype=torch.float64) for _ in range(4))
    v, state = (torch.randn(ROWS, HEADS, n, VALUES, dtype=torch.float64) for n in (length, KEYS))
    r = r / r.norm(dim=-1, keepdim=True)
    e = r * (share.sigmoid() if not removal_decays else share[..., :1].sigmoid())
    return [q, k, v, r * log_decay.exp() if removal_decays else r, e, log_decay, state]


def assert_is_the_recurrence(inputs: list[Tensor], dtype: torch.dtype, limit: float, span: int) -> None:
    """Outputs, last states and all gradients, relative to their norms, or for g to that of the terms that cancel."""
    exact = with_gradients(token_by_token, inputs)
    found = with_gradients(functools.partial(generalized_delta_rule, span=span), [x.to(dtype) for x in inputs])
    scales = [x.norm() for x in exact]
    scales[-2] = torch.maximum(scales[-2], (inputs[0] * exact[2]).norm())  # dg sums q dq - k dk
    for got, wanted, scale in zip(found, exact, scales, strict=True):
        assert (got - wanted).norm() <= limit * scale + 1e-30


CASES = [(torch.float64, 1e-12), (torch.float32, 3e-6)]


@pytest.mark.parametrize(("dtype", "limit"), CASES, ids=["float64", "float32"])
@pytest.mark.parametrize("removal_decays", [False, True])
@pytest.mark.parametrize("lowest", [-1.0, -5.0, -16.0, -100.0])
@pytest.mark.parametrize("length", [1, 2, 7, 37, 101])
def test_any_decay(length, lowest, removal_decays, dtype, limit):
    inputs = drawn_inputs(length, lowest * torch.rand(ROWS, HEADS, length, KEYS, dtype=torch.float64), removal_decays)
    assert_is_the_recurrence(inputs, dtype, limit, span=8)
    if lowest == -1.0:
        assert_is_the_recurrence(inputs, dtype, limit, span=16)


@pytest.mark.parametrize(("dtype", "limit"), CASES, ids=["float64", "float32"])
@pytest.mark.parametrize("rate", [-1e30, -100.0, -16.0])
def test_fast_and_slow_features_and_tokens(rate, dtype, limit):
    """Some tokens forget everything, one feature always does, and the others keep their digits."""
    log_decay = -torch.rand(ROWS, HEADS, 61, KEYS, dtype=torch.float64) / 100
    log_decay[:, :, ::5] = rate
    log_decay[..., 0] = rate
    assert_is_the_recurrence(drawn_inputs(61, log_decay, True), dtype, limit, span=8)
