"""S4 (Gu et al. 2022a): a state space model with a full HiPPO matrix per feature instead of attention.

Shapes: B batch, L length, D width, N state_size, M = N / 2 modes (one of each conjugate pair), S directions.
"""

from __future__ import annotations

import math
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.kernels.chunks import chunk_size
from attentions.kernels.numerics import accumulation_dtype, recompute_upcast, upcast
from cab import Attention, DecodeState, PaddingMasks, ParamGroupOverride, Pattern, register_attention
from cab.attention import CommonArguments, Decoded
from cab.claims import Claims
from cab.registry.options import Even

DT_MIN, DT_MAX = 1e-3, 1e-1
"""Range of the initial step sizes."""

NUMBERS = 8
"""That a feature forms for each token, in the convolution, or for each number of its matrix, in the powers; about."""


@register_attention("s4", patterns="NS CS", complexity="n log n", paper="Gu et al. 2022a")
class S4Attention(Attention):
    """Compute y = K * u + D u with K_l = C Abar^l Bbar, the bilinear discretization of x' = A x + B u.

    Eq. 3 to 5 of the paper: Abar = (1 - dt A / 2)^-1 (1 + dt A / 2), Bbar = (1 - dt A / 2)^-1 dt B. A = diag(lambda) -
    P P*, diagonal plus low rank, is initialized as the HiPPO matrix LegS (Eq. 2 and theorem 1). Each feature has its
    own A, B, C, D and dt. The D results pass GELU, dropout and a gated linear map, as in the latest release. The method
    has no queries, keys or values. In NS, a second C reads the tokens after a position.

    K is one product of about sqrt(L) powers C Abar^j and as many Abar^(T k) Bbar, which are formed by squaring: N^3 log
    L and N L operations. The paper (section 3.2) evaluates a generating function on the unit circle instead, with N L
    divisions and C (1 - Abar^L) in place of C; its code trains that product, which depends on a length.

    The decode state has constant size: M complex numbers per feature. A token takes time N; a prompt is read token by
    token. K is computed in float64, everything else in float32 or wider.

    Args:
        state_size: state size N; even, since modes are conjugate pairs.
    """

    requires_right_padding = True
    has_constant_size_state = True
    claims = Claims(noncausal_rounding="one Fourier transform of the whole row")

    def __init__(self, *, state_size: Even = 64, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.state_size = state_size
        self.make_state_space()

    def make_projections(self) -> None:
        """Create the output map. It is the last parameter."""
        self.out_proj = nn.Linear(self.embed_dim, self.embed_dim)

    def make_state_space(self) -> None:
        """Initialize LegS with B_n = sqrt(2n + 1) and P = B / sqrt(2).

        The basis consists of the modes, with phases that make B real.
        """
        directions = 1 if self.pattern is Pattern.CS else 2
        shape = (self.embed_dim, self.state_size // 2)
        number = torch.arange(self.state_size, dtype=torch.float64)
        inputs = (2 * number + 1).sqrt()
        skew = torch.outer(inputs, inputs) / 2 * (number - number[:, None]).sign()
        frequency, basis = torch.linalg.eigh(-1j * skew)  # A + P P* = skew - 1/2
        frequency, basis = frequency[shape[1] :], basis[:, shape[1] :]
        inputs = (basis.mH @ inputs.to(basis.dtype)).abs().float()
        pairs = torch.stack([inputs, torch.zeros_like(inputs)], dim=-1).expand(*shape, 2)
        self.log_decay = nn.Parameter(torch.full(shape, math.log(0.5)))
        self.frequency = nn.Parameter(frequency.float().expand(shape).clone())
        self.low_rank = nn.Parameter(pairs * math.sqrt(0.5))
        self.input = nn.Parameter(pairs.clone())
        self.readout = nn.Parameter(torch.view_as_real(torch.randn(directions, *shape, dtype=torch.complex64)).clone())
        self.skip = nn.Parameter(torch.randn(self.embed_dim))
        self.log_dt = nn.Parameter(torch.empty(self.embed_dim).uniform_(math.log(DT_MIN), math.log(DT_MAX)))

    def param_group_overrides(self) -> dict[str, ParamGroupOverride]:
        """Return the released settings, with a learning rate of at most 0.001 for the state space."""
        names = ("log_decay", "frequency", "low_rank", "input", "log_dt")
        return {name: ParamGroupOverride(weight_decay=0.0) for name in names}

    def modes(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return dt [D, 1], lambda, P and B [D, M], and C [D, S, M] in float64, for one of each conjugate pair."""
        modes = torch.complex(-self.log_decay.double().exp(), self.frequency.double())
        low_rank, inputs, readout = (
            torch.view_as_complex(x.double()) for x in (self.low_rank, self.input, self.readout)
        )
        return self.log_dt.double().exp().unsqueeze(1), modes, low_rank, inputs, readout.transpose(0, 1)

    def both_of_each_pair(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Expand conjugate pairs to all N states: [D, N], C [D, S, N]."""
        dt, *of_modes = self.modes()
        modes, low_rank, inputs, readout = (torch.cat([x, x.conj()], dim=-1) for x in of_modes)
        return dt, modes, low_rank, inputs, readout

    def compute(self, query: Tensor, *_: Tensor | PaddingMasks) -> Tensor:
        """Convolve a few features at a time, recomputed in the backward pass.

        Padding is zero and on the right, so it does not contribute to any sum.
        """
        batch, length = query.shape[:2]
        size = chunk_size(NUMBERS * max(batch * length, self.state_size**2), query.device)
        with torch.autocast(query.device.type, enabled=False):
            u = upcast(query)
            pieces = zip(u.split(size, dim=2), *(x.split(size) for x in self.modes()), strict=True)
            y = torch.cat([recompute_upcast(self.filtered, piece) for piece in pieces], dim=2)
            y = self.activate(torch.addcmul(y, self.skip.to(u.dtype), u))
        return self.out_proj(y.to(query.dtype))

    def filtered(self, u: Tensor, *space: Tensor) -> Tensor:
        """Return K * u, [B, L, D] to [B, L, D]; the kernel of 2 L lags ends with lag -1."""
        length = u.shape[1]
        kernel = self.kernel(length, *space).to(u.dtype)
        lags = F.pad(kernel[:, 0], (0, length))
        if kernel.shape[1] == 2:
            lags = torch.cat([kernel[:, 0], kernel[:, 1].flip(1)], dim=1)
        spectrum = torch.fft.rfft(u.transpose(1, 2), n=2 * length) * torch.fft.rfft(lags)
        return torch.fft.irfft(spectrum, n=2 * length)[..., :length].transpose(1, 2)

    def activate(self, y: Tensor) -> Tensor:
        return F.dropout(F.gelu(y), self.dropout, self.training)

    @staticmethod
    def kernel(length: int, dt: Tensor, modes: Tensor, low_rank: Tensor, inputs: Tensor, readout: Tensor) -> Tensor:
        """Return K_0 .. K_{L-1} of the features of ``modes``, [D, S, L] in float64."""
        factors = _discrete(dt, modes, low_rank, inputs)
        real, imaginary = (torch.diag_embed(x) for x in (factors[0].real, factors[0].imag))
        matrix = torch.cat([torch.cat([real, -imaginary], dim=2), torch.cat([imaginary, real], dim=2)], dim=1)
        gather = _row(low_rank.conj()).unsqueeze(1)
        back, correction, inwards = (torch.cat([x.real, x.imag], dim=1).unsqueeze(2) for x in factors[1:])
        matrix = matrix - back @ gather
        matrix, column = (x - correction @ (gather @ x) for x in (matrix, inwards))
        return matrix_powers(_row(readout), matrix, column.squeeze(2), length)

    def compute_row(self, query: Tensor, *_: Any) -> Tensor:
        """Compute x_l = Abar x_{l-1} + Bbar u_l and y_l = C x_l + D u_l of one sequence, [L, D] to [L, D].

        In NS, the second C reads the tokens after a position.
        """
        forwards, inwards, readout = (x.to(torch.complex128) for x in self.dense())

        def run(tokens: Tensor, weights: Tensor) -> Tensor:
            state, outputs = torch.zeros_like(inwards), []
            for u in tokens:
                state = (forwards @ state.unsqueeze(2)).squeeze(2) + inwards * u.unsqueeze(1)
                outputs.append((weights * state).sum(1).real)
            return torch.stack(outputs)

        y = run(query, readout[:, 0]) + self.skip * query
        if readout.shape[1] == 2:
            later = torch.cat([torch.zeros_like(query[:1]), query.flip(0)[:-1]])
            y = y + run(later, readout[:, 1]).flip(0)
        return self.out_proj(F.gelu(y).to(query.dtype))

    def dense(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return Abar [D, N, N], Bbar [D, N] and C [D, S, N] as dense tensors."""
        dt, modes, low_rank, inputs, readout = self.both_of_each_pair()
        matrix = torch.diag_embed(modes) - low_rank.unsqueeze(2) * low_rank.conj().unsqueeze(1)
        half, one = dt.unsqueeze(2) / 2 * matrix, torch.eye(self.state_size, device=dt.device)
        return torch.linalg.solve(one - half, one + half), torch.linalg.solve(one - half, dt * inputs), readout

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return a zero state: one complex number per feature and mode, as pairs [B, D, M, 2]."""
        shape = (batch_size, self.embed_dim, self.state_size // 2, 2)
        return {"modes": like.new_zeros(shape, dtype=accumulation_dtype(like.dtype))}

    def decode_inputs(self, tokens: Tensor, mask: Tensor | None, state: DecodeState) -> Decoded:
        """Read token by token, with Abar as two diagonal plus low-rank factors and the Woodbury identity."""
        with torch.autocast(tokens.device.type, enabled=False):
            u = upcast(tokens)
            x = torch.view_as_complex(state["modes"].to(u.dtype).contiguous())
            dt, modes, low_rank, inputs, readout = self.modes()
            factors = _discrete(dt, modes, low_rank, inputs)
            diagonal, back, correction, inwards, gather, weights = (
                y.to(x.dtype) for y in (*factors, low_rank.conj(), readout[:, 0])
            )
            outputs = []
            for number, token in enumerate(u.unbind(dim=1)):
                moved = diagonal * x - back * _paired(gather, x) + inwards * token.unsqueeze(2)
                after = moved - correction * _paired(gather, moved)
                x = after if mask is None else torch.where(mask[:, number, None, None], x, after)
                outputs.append(_paired(weights, x).squeeze(2))
            y = self.activate(torch.addcmul(torch.stack(outputs, dim=1), self.skip.to(u.dtype), u))
        return self.out_proj(y.to(tokens.dtype)), {"modes": torch.view_as_real(x)}


def _discrete(dt: Tensor, modes: Tensor, low_rank: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a, b, c, d [D, M] of x' = (1 - c P*) (a x - b P* x + d u).

    This is the bilinear rule with the inverse given by the Woodbury identity.
    """
    half, inverse = dt / 2, 1 / (1 - dt / 2 * modes)
    spread = inverse * low_rank
    strength = half / (1 + half * _paired(low_rank.conj(), spread))
    return inverse * (1 + half * modes), half * spread, strength * spread, inverse * dt * inputs


def _row(weights: Tensor) -> Tensor:
    """Interleave factors of real and imaginary parts [..., M] for :func:`_paired`, as real [..., N]."""
    return torch.cat([2 * weights.real, -2 * weights.imag], dim=-1)


def _paired(a: Tensor, b: Tensor) -> Tensor:
    """Sum products over all N states, given one of each conjugate pair: [..., M] to a real [..., 1]."""
    return 2 * (a * b).real.sum(-1, keepdim=True)


def matrix_powers(rows: Tensor, matrix: Tensor, column: Tensor, length: int) -> Tensor:
    """Return c A^l b for l below L: [D, S, L].

    All c A^j for j below T, and A^(T k) b for all k, about the root of L each: both are doubled by A^2, A^4 and so on.
    Their products are the answers.

    Args:
        rows: c, [D, S, N].
        matrix: A, [D, N, N].
        column: b, [D, N].
        length: L.
    """
    num_rows, left, right = rows.shape[1], rows, column.unsqueeze(2)
    while left.shape[1] ** 2 < num_rows**2 * length:
        left, matrix = torch.cat([left, left @ matrix], dim=1), matrix @ matrix
    together = left.shape[1] // num_rows
    while right.shape[2] * together < length:
        right, matrix = torch.cat([right, matrix @ right], dim=2), matrix @ matrix
    answers = left @ right[..., : -(-length // together)]
    return answers.unflatten(1, (together, num_rows)).permute(0, 2, 3, 1).flatten(2)[..., :length]
