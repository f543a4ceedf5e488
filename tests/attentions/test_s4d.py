from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attentions import s4d
from attentions.s4d import S4DAttention
from cab import build_attention

FORMS = {
    "NS": {"pattern": "NS"},
    "NS one-directional": {"pattern": "NS", "bidirectional": False},
    "CS": {"pattern": "CS"},
}
LENGTHS = (1, 16, 17, 130)


def build(form: str, **options: object) -> S4DAttention:
    torch.manual_seed(3)
    options = {"embed_dim": 10, "num_heads": 2, "state_size": 6} | FORMS[form] | options
    attention = S4DAttention(**options).double()
    with torch.no_grad():  # every parameter away from the values it starts from, every feature with its own
        for parameter in attention.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return attention


def tokens(length: int, batch: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randn(batch, length, 10, generator=generator, dtype=torch.float64).to(dtype)


def run(attention: S4DAttention, x: Tensor, mask: Tensor | None, *, reference: bool) -> list[Tensor]:
    """Output, and gradients to the input and to all parameters."""
    attention.use_reference = reference
    attention.zero_grad()
    x = x.clone().requires_grad_()
    output = attention(x, query_padding_mask=mask)
    output.backward(torch.sin(torch.arange(output.numel(), dtype=output.dtype)).view_as(output))
    assert x.grad is not None
    return [output.detach(), x.grad, *(parameter.grad for parameter in attention.parameters())]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("length", LENGTHS)
def test_blocks_give_the_convolution_and_its_gradients(form: str, length: int) -> None:
    attention, padding = build(form), torch.rand(3, length) < 0.4
    padding[0] = True
    for mask in (None, padding):
        fast, slow = (run(attention, tokens(length), mask, reference=reference) for reference in (False, True))
        for got, expected in zip(fast, slow, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_output_in_many_pieces_is_the_same(form: str, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = build(form, channels=channels, dropout=0.0)
    whole = run(attention, tokens(113), None, reference=False)
    monkeypatch.setattr(s4d, "CPU_LIMIT", 3 * channels * 10 * s4d.MIN_BLOCK)
    for piece, one in zip(run(attention, tokens(113), None, reference=False), whole, strict=True):
        torch.testing.assert_close(piece, one, rtol=1e-10, atol=1e-12)


def test_dropout_in_pieces_has_the_gradient_of_what_was_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s4d, "CPU_LIMIT", 2 * 2 * 10 * s4d.MIN_BLOCK)
    attention, x, shift = build("CS", dropout=0.4), tokens(100), 1e-6 * torch.randn(3, 100, 10, dtype=torch.float64)

    def total(x: Tensor) -> Tensor:
        torch.manual_seed(11)
        return attention(x).square().sum()

    x.requires_grad_()
    (gradient,) = torch.autograd.grad(total(x), x)
    with torch.no_grad():
        difference = (total(x + shift) - total(x - shift)) / 2
    torch.testing.assert_close((gradient * shift).sum(), difference, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize(
    ("width", "heads", "options", "extra"),
    [
        (256, 2, {"state_size": 64}, -98_240),
        (768, 12, {"state_size": 16, "channels": 8}, 2_462_224),
    ],
)
def test_parameters_are_those_of_the_published_runs(width: int, heads: int, options: dict, extra: int) -> None:
    with torch.device("meta"):
        attention = build_attention("s4d", pattern="CS", embed_dim=width, num_heads=heads, **options)
    count = sum(parameter.numel() for parameter in attention.parameters())
    assert count == 4 * width**2 + 4 * width + extra


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_rounds_the_last_map_alone(form: str, dtype: torch.dtype) -> None:
    attention = build(form).float()
    x = 30.0 * tokens(300, dtype=torch.float32)
    exact = attention(x)
    with torch.autocast("cpu", dtype=dtype):
        output = attention(x)
        output.float().square().mean().backward()
    assert output.dtype is dtype
    assert (output - exact).abs().max() <= 4 * torch.finfo(dtype).eps * exact.abs().max()
    assert all(parameter.grad.isfinite().all() for parameter in attention.parameters())


def test_initial_modes_are_s4d_inv_and_outputs_are_of_size_one() -> None:
    attention = build_attention("s4d", pattern="CS", embed_dim=256, num_heads=2, state_size=16)
    expected = [16 / math.pi * (16 / (2 * k + 1) - 1) for k in range(8)]
    torch.testing.assert_close(attention.frequency.detach(), torch.tensor(expected))
    assert torch.allclose(attention.log_decay.exp(), torch.tensor(0.5))
    steps = attention.log_dt.exp()
    assert 1e-3 <= steps.min() < 2e-3
    assert 5e-2 < steps.max() <= 1e-1
    # the response to a constant input, C B / A times two: of variance one over channels and features
    gain = torch.view_as_complex(attention.readout[0]) / torch.complex(-attention.log_decay.exp(), attention.frequency)
    assert 0.8 < (2 * gain.sum(dim=-1).real).square().mean() < 1.25
