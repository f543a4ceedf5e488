"""S4: the kernel from powers of its matrix, two directions, the recurrence of decoding."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attentions import s4
from attentions.s4 import S4Attention
from cab import build_attention
from tests.attentions import agreement

LENGTHS = (1, 7, 129)


def make(pattern: str, **options: object) -> S4Attention:
    """In float64, every parameter moved from where it starts, all features alike no longer."""
    module = build_attention("s4", pattern=pattern, embed_dim=agreement.WIDTH, num_heads=3, state_size=6, **options)
    assert isinstance(module, S4Attention)
    with torch.no_grad():
        for parameter in module.double().parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module


@pytest.mark.parametrize("pattern", ["NS", "CS"])
class TestForms:
    @pytest.mark.parametrize("length", LENGTHS)
    def test_convolution_is_the_recurrence(self, pattern: str, length: int) -> None:
        agreement.assert_forms_agree(make(pattern), length, length, masked=length > 1)

    def test_in_many_pieces(self, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
        module, x = make(pattern), torch.randn(2, 60, agreement.WIDTH, dtype=torch.float64, requires_grad=True)
        whole = output_and_gradients(module, x)
        monkeypatch.setattr(s4, "NUMBERS", 2**14)
        for piece, one in zip(output_and_gradients(module, x), whole, strict=True):
            torch.testing.assert_close(piece, one)


def output_and_gradients(module: S4Attention, x: Tensor) -> list[Tensor]:
    output = module(x)
    return [output, *torch.autograd.grad(output.cos().sum(), [x, *module.parameters()])]


@pytest.mark.parametrize(("length", "state_size"), [(3, 2), (1000, 64)])
def test_kernel_is_made_of_powers(length: int, state_size: int) -> None:
    """C Abar^l Bbar, at the published size and at times at which large powers still count."""
    module = S4Attention(pattern="CS", embed_dim=4, num_heads=1, state_size=state_size).double()
    forwards, inwards, readout = module.dense()
    state, expected = inwards.unsqueeze(-1), []
    for _ in range(length):
        expected.append((readout[:, 0].unsqueeze(1) @ state).real.flatten())
        state = forwards @ state
    receptive_field = torch.stack(expected, dim=1)
    torch.testing.assert_close(
        module.kernel(length, *module.modes())[:, 0],
        receptive_field,
        rtol=0.0,
        atol=1e-10 * receptive_field.abs().max().item(),
    )


def test_state_matrix_is_hippo_legs() -> None:
    """As the paper's Eq. 2 has it, up to a change of basis: powers of A from B, seen by B."""
    size = 10
    n = torch.arange(size, dtype=torch.float64)
    below = ((2 * n[:, None] + 1) * (2 * n + 1)).sqrt()
    hippo, inwards = -(below.tril(-1) + torch.diag(n + 1)), (2 * n + 1).sqrt()
    module = S4Attention(pattern="CS", embed_dim=1, num_heads=1, state_size=size).double()
    with torch.no_grad():
        module.low_rank.copy_(torch.view_as_real(torch.view_as_complex(module.input) * math.sqrt(0.5)))
    modes, low_rank, own = (x[0] for x in module.both_of_each_pair()[1:4])
    matrix = torch.diag(modes) - torch.outer(low_rank, low_rank.conj())
    seen, expected = own, inwards
    for power in range(5):
        moment = (inwards @ expected).item()
        assert (own.conj() @ seen).real.item() == pytest.approx(moment, rel=1e-4), power  # stored in float32
        seen, expected = matrix @ seen, hippo @ expected


def test_decodes() -> None:
    agreement.assert_decodes(make("CS"), 41, 41, (5, 1, 17, 1))


def test_without_low_rank_every_mode_is_alone() -> None:
    """P = 0: a diagonal state space by the bilinear rule."""
    module = make("CS")
    with torch.no_grad():
        module.low_rank.zero_()
    dt, modes, _, inwards, readout = module.both_of_each_pair()
    half = dt / 2 * modes
    factor = (1 + half) / (1 - half)
    powers = factor.unsqueeze(-1) ** torch.arange(50)
    expected = torch.einsum("dn,dnl->dl", readout[:, 0] * dt * inwards / (1 - half), powers).real
    torch.testing.assert_close(module.kernel(50, *module.modes())[:, 0], expected)


def test_state_spaces_are_trained_without_weight_decay() -> None:
    module = make("CS")
    assert {name for name, rule in module.param_group_overrides().items() if rule.weight_decay == 0.0} == {
        "log_decay",
        "frequency",
        "low_rank",
        "input",
        "log_dt",
    }
