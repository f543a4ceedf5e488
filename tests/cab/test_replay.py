"""Replay: training and decoding in chunks that have the same shape."""

import pytest
import torch

from cab import Replay, build_attention
from cab.errors import UserError


def replay(name: str, dtype: torch.dtype = torch.float32, chunk_size: int = 8) -> Replay:
    torch.manual_seed(0)
    return Replay(build_attention(name, pattern="CS", embed_dim=16, num_heads=2).to(dtype).eval(), chunk_size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["vanilla", "gla", "gated_deltanet", "logsparse"])
def test_steps_have_the_bits_of_the_row_and_gradients_are_those_of_the_attention(name, dtype):
    module = replay(name, dtype)
    x = torch.randn(3, 21, 16).to(dtype).requires_grad_()
    output = module(x)
    state, steps = module.init_state(3), []
    for token in x.unbind(1):
        step, state = module.step(token, state)
        steps.append(step)
    assert torch.equal(torch.stack(steps, 1), output)
    if dtype == torch.float32:
        plain = module.attention(x)
        torch.testing.assert_close(output, plain)
        gradients = (torch.autograd.grad(y.square().sum(), [x, *module.parameters()]) for y in (output, plain))
        torch.testing.assert_close(*gradients)


def test_prompts_of_any_size_have_the_bits_of_the_row():
    module, x = replay("ssd"), torch.randn(2, 30, 16)
    state, parts = module.init_state(2), []
    for part in x.split([1, 6, 1, 16, 3, 3], dim=1):
        output, state = module.prefill(part, state)
        parts.append(output)
    assert torch.equal(torch.cat(parts, 1), module(x))


def test_what_cannot_be_replayed_is_refused():
    with pytest.raises(UserError, match="chunk_size must be positive, got 0"):
        replay("gla", chunk_size=0)
    with pytest.raises(UserError, match="Linear has no prefill"):
        Replay(torch.nn.Linear(2, 2), 8)
