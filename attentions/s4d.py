"""S4D (Gu et al. 2022b): a diagonal state space model per feature instead of attention.

Shapes: B batch, L length, D width, c channels, M = state_size / 2 complex modes, T tokens of a block, J blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.kernels.chunks import dropout_factor, dropout_seed
from attentions.kernels.numerics import accumulation_dtype, recompute
from cab import Attention, DecodeState, PaddingMasks, Pattern, register_attention
from cab.attention import CommonArguments, Decoded
from cab.claims import Claims
from cab.padding import compact_rows, lengths
from cab.registry.options import Even, Positive

MIN_BLOCK = 16
"""Tokens of a block, or M where that is more: within a block a matrix does the convolution, then the state."""

DT_MIN, DT_MAX = 1e-3, 1e-1
"""Range of the initial step sizes."""


@register_attention("s4d", patterns="NS CS", complexity="n", paper="Gu et al. 2022b")
class S4DAttention(Attention):
    """Compute y = K * u + D u with K_l = 2 Re sum_k C_k (exp(dt A_k) - 1) / A_k exp(dt A_k l) (CAB, Eq. 21 to 23).

    Each feature has c such kernels, one per channel; the c D results pass GELU, dropout and a linear map to D features.
    All features share the modes A; each has its own step dt. The method has no queries, keys or values.

    Time is proportional to L, without a kernel of length L and without an FFT: the outputs of a block are one matrix,
    made of the first T values of K and of powers of exp(dt A), times the tokens of the block and the state before it.

    The decode state has constant size: M complex numbers per feature, shared by the channels. Sums are computed in
    float32 (float64 for a float64 module), whatever the dtype of the tokens.

    Args:
        state_size: state size N, two per mode; even.
        channels: kernels c per feature; default ``num_heads``, as in the published runs.
        bidirectional: whether pattern NS also reads the tokens after a position, with a second set of kernels. The
            published runs did not (False). Pattern CS reads earlier tokens only.
    """

    requires_right_padding = True
    has_constant_size_state = True
    claims = Claims(parameter_budget=0.5)  # 12 channels in GPT-2 add 48%; the published run, with 8 of them, 27%

    def __init__(
        self,
        *,
        state_size: Even = 16,
        channels: Positive | None = None,
        bidirectional: bool = True,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        self.state_size = state_size
        self.channels = self.num_heads if channels is None else channels
        self.bidirectional = bidirectional and self.pattern is Pattern.NS
        self.make_state_space()
        self.out_proj = nn.Linear(self.channels * self.embed_dim, self.embed_dim)

    def make_projections(self) -> None:
        """Create no projections: the method has no queries, keys or values."""

    def make_state_space(self) -> None:
        """Initialize S4D-Inv: A_k = -1/2 + i N/pi (N/(2k + 1) - 1).

        B is random, scaled so that outputs have unit scale.
        """
        n, modes = self.state_size, self.state_size // 2
        directions = 2 if self.bidirectional else 1
        frequency = n / math.pi * (n / (2 * torch.arange(modes) + 1) - 1)
        self.log_decay = nn.Parameter(torch.full((modes,), math.log(0.5)))
        self.frequency = nn.Parameter(frequency)
        self.log_dt = nn.Parameter(torch.empty(self.embed_dim).uniform_(math.log(DT_MIN), math.log(DT_MAX)))
        b = torch.randn(modes, dtype=torch.complex64)
        size = b.abs() / torch.complex(frequency.new_full((modes,), 0.5), frequency).abs()
        b = b / (2 * size.square().sum()).sqrt()
        c = torch.randn(directions, self.channels, self.embed_dim, modes, dtype=torch.complex64)
        self.readout = nn.Parameter(torch.view_as_real(c * b).contiguous())
        self.skip = nn.Parameter(torch.randn(self.channels, self.embed_dim))

    def discretize(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the logarithm dt A [D, M] of one step's factor, and C (exp(dt A) - 1) / A [directions, c, D, M]."""
        a = torch.complex(-self.log_decay.to(dtype).exp(), self.frequency.to(dtype))
        log_step = self.log_dt.to(dtype).exp().unsqueeze(1) * a
        return log_step, torch.view_as_complex(self.readout.to(dtype)) * (torch.expm1(log_step) / a)

    def compute(self, query: Tensor, *_: Tensor | PaddingMasks) -> Tensor:
        return self.filtered(query, None)  # padding is zero and on the right: it adds nothing to any sum

    def compute_row(self, query: Tensor, *_: Any) -> Tensor:
        """Sum over all pairs of positions with the explicit kernel, [L, D] to [L, D]."""
        log_step, readout = self.discretize(query.dtype)
        times = torch.arange(len(query), device=query.device)
        kernel = 2 * torch.einsum("scdm,dml->scdl", readout, (log_step.unsqueeze(-1) * times).exp()).real
        lag = times[:, None] - times  # target - source
        pairs = kernel[0][..., lag.clamp(min=0)].masked_fill(lag < 0, 0.0)
        if self.bidirectional:
            pairs = pairs + kernel[1][..., (-lag - 1).clamp(min=0)].masked_fill(lag >= 0, 0.0)
        y = torch.einsum("cdij,jd->icd", pairs, query) + self.skip * query.unsqueeze(1)
        return self.out_proj(F.gelu(y).flatten(1))

    def filtered(self, x: Tensor, state: Tensor | None) -> Tensor:
        """Compute in blocks, starting from ``state`` (complex [B, D, M]): [B, L, D] to [B, L, D]."""
        batch, length, _ = x.shape
        block = self.block_size(length)
        with torch.autocast(x.device.type, enabled=False):
            log_step, readout = self.discretize(accumulation_dtype(x.dtype))
            powers = self.powers(log_step, block)
            within, factor = powers[..., :block], powers[..., block]
            tokens = self.blocks(x, block)
            initial = within.new_zeros(*tokens.shape[:2], within.shape[1]) if state is None else state.transpose(0, 1)
            before = diagonal_scan(self.summaries(tokens, within.flip(-1)), factor, initial)
            sources = [tokens.flatten(1, 2), _as_pairs(before)]
            if self.bidirectional:
                after = diagonal_scan(self.summaries(tokens, within), factor, initial, reverse=True)
                sources.append(_as_pairs(after))
            matrix = self.block_matrix(powers, readout)
        dropout = self.dropout if self.training else 0.0
        output = read_blocks(sources, matrix, self.out_proj, dropout=dropout, dtype=x.dtype)
        return output.reshape(batch, -1, self.embed_dim)[:, :length]

    def block_size(self, length: int) -> int:
        return min(max(MIN_BLOCK, self.state_size // 2), length)

    def powers(self, log_step: Tensor, last: int) -> Tensor:
        """Return exp(dt A l) for l = 0 .. last, complex [D, M, last + 1]."""
        return (log_step.unsqueeze(-1) * torch.arange(last + 1, device=log_step.device)).exp()

    def blocks(self, x: Tensor, block: int) -> Tensor:
        """Reshape [B, L, D] to [D, B, J, T], padded with zeros at the right end."""
        x = F.pad(x.to(accumulation_dtype(x.dtype)), (0, 0, 0, -x.shape[1] % block))
        return x.permute(2, 0, 1).contiguous().unflatten(2, (-1, block))

    def summaries(self, tokens: Tensor, weights: Tensor) -> Tensor:
        """Sum the tokens [D, B, J, T] of each block with ``weights``, complex [D, M, T]: [D, B, J, M]."""
        flat = torch.view_as_real(weights.transpose(1, 2).contiguous()).flatten(2)
        sums = tokens.flatten(1, 2) @ flat
        return torch.view_as_complex(sums.unflatten(-1, (-1, 2))).unflatten(1, tokens.shape[1:3])

    def block_matrix(self, powers: Tensor, readout: Tensor) -> Tensor:
        """Return the maps from T tokens and the states before and after a block to its c T outputs, [D, c T, ...]."""
        block = powers.shape[-1] - 1
        kernel = 2 * torch.einsum("scdm,dml->sdcl", readout, powers[..., :block]).real
        lag_0 = kernel[0, ..., :1] + self.skip.to(kernel.dtype).T.unsqueeze(-1)
        later = kernel[1, ..., :-1].flip(-1) if self.bidirectional else torch.zeros_like(kernel[0, ..., :-1])
        lags = torch.cat([later, lag_0, kernel[0, ..., 1:]], dim=-1)  # from -(T - 1) to T - 1
        maps = [lags.flip(-1).unfold(-1, block, 1).flip(-2)]
        # 2 Re(z s) = 2 Re z Re s - 2 Im z Im s: the conjugate, as pairs
        steps = [powers[..., 1:]] + ([powers[..., :block].flip(-1)] if self.bidirectional else [])
        for weights, step in zip(readout, steps, strict=True):
            product = 2 * torch.einsum("cdm,dml->dclm", weights, step).conj().resolve_conj()
            maps.append(torch.view_as_real(product).flatten(-2))
        return torch.cat(maps, dim=-1).flatten(1, 2)

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return a zero state: one complex number per feature and mode, as pairs [B, D, M, 2]."""
        shape = (batch_size, self.embed_dim, self.state_size // 2, 2)
        return {"modes": like.new_zeros(shape, dtype=accumulation_dtype(like.dtype))}

    def decode_inputs(self, tokens: Tensor, mask: Tensor | None, state: DecodeState) -> Decoded:
        modes = torch.view_as_complex(state["modes"].to(accumulation_dtype(tokens.dtype)).contiguous())
        if tokens.shape[1] == 1:
            output, modes = self.recur(tokens, modes, mask)
        else:
            output, modes = self.filtered(tokens, modes), self.modes_after(tokens, modes, mask)
        return output, {"modes": torch.view_as_real(modes)}

    def recur(self, query: Tensor, modes: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """Read one token [B, 1, D]: s = exp(dt A) s + u, y = 2 Re(C s) + D u."""
        with torch.autocast(query.device.type, enabled=False):
            u = query.squeeze(1).to(accumulation_dtype(query.dtype))
            log_step, readout = self.discretize(u.dtype)
            after = torch.addcmul(u.unsqueeze(-1), log_step.exp(), modes)
            y = 2 * torch.einsum("cdm,bdm->bcd", readout[0], after).real + self.skip * u.unsqueeze(1)
            y = F.dropout(F.gelu(y), self.dropout, self.training)
            if padding is not None:
                after = torch.where(padding.unsqueeze(-1), modes, after)
        return self.out_proj(y.flatten(1).to(query.dtype)).unsqueeze(1), after

    def modes_after(self, x: Tensor, modes: Tensor, padding: Tensor | None) -> Tensor:
        """Return the state after tokens [B, L, D]: exp(dt A L) s + sum_l exp(dt A (L - 1 - l)) u_l."""
        # What counts is the distance from the last real token: the latest comes first.
        latest, _, _ = compact_rows(x.flip(1), None if padding is None else padding.flip(1))
        block = self.block_size(x.shape[1])
        with torch.autocast(x.device.type, enabled=False):
            log_step, _ = self.discretize(accumulation_dtype(x.dtype))
            sums = self.summaries(self.blocks(latest, block), self.powers(log_step, block)[..., :block])
            starts = torch.arange(sums.shape[2], device=x.device) * block
            decayed = torch.einsum("dbjm,djm->bdm", sums, (log_step.unsqueeze(1) * starts[:, None]).exp())
            return decayed + (log_step * lengths(x, padding)[:, None, None]).exp() * modes


def _as_pairs(states: Tensor) -> Tensor:
    """View complex [D, B, J, M] as real [D, B J, 2 M], real parts before imaginary parts."""
    return torch.view_as_real(states).flatten(-2).flatten(1, 2)


GROUP = 16
"""Inputs that one group scans sequentially. The groups are joined by the same recurrence."""


def diagonal_scan(inputs: Tensor, factor: Tensor, initial: Tensor, *, reverse: bool = False) -> Tensor:
    """Return the states before each input, s_{j+1} = factor s_j + inputs_j: complex [D, B, J, M].

    Args:
        inputs: complex [D, B, J, M].
        factor: complex [D, M].
        initial: the state before the first input that is read, complex [D, B, M].
        reverse: read the inputs from the last to the first.
    """
    if reverse:
        return _scan(inputs.flip(2), factor[:, None], initial).flip(2)
    return _scan(inputs, factor[:, None], initial)


def _scan(inputs: Tensor, factor: Tensor, initial: Tensor) -> Tensor:
    """Scan forward: step by step for few inputs, else in groups that advance together. ``factor`` is [D, 1, M]."""
    count = inputs.shape[2]
    if count <= GROUP:
        series = [initial]
        for x in inputs.unbind(dim=2)[:-1]:
            series.append(torch.addcmul(x, factor, series[-1]))
        return torch.stack(series, dim=2)
    if count % GROUP:
        inputs = torch.cat([inputs, inputs.new_zeros(*inputs.shape[:2], -count % GROUP, inputs.shape[3])], dim=2)
    groups = inputs.unflatten(2, (-1, GROUP))  # [D, B, groups, GROUP, M]
    within = [torch.zeros_like(groups[:, :, :, 0])]
    decay = [torch.ones_like(factor)]
    for x in groups.unbind(dim=3):
        within.append(torch.addcmul(x, factor.unsqueeze(1), within[-1]))
        decay.append(decay[-1] * factor)
    starts = _scan(within.pop(), decay.pop(), initial)
    states = torch.stack(within, dim=3)
    states.addcmul_(torch.stack(decay, dim=2).unsqueeze(1), starts.unsqueeze(3))
    return states.flatten(2, 3)[:, :, :count]


CPU_LIMIT, DEVICE_LIMIT = 2**20, 2**26
"""Largest number of elements in a tensor of one chunk of blocks. On a GPU, launches cost more than memory."""


def read_blocks(
    sources: Sequence[Tensor],
    matrix: Tensor,
    project: nn.Module,
    *,
    dropout: float,
    dtype: torch.dtype,
) -> Tensor:
    """Return project(dropout(GELU(matrix [tokens; states]))) per token, [G, T, outputs]; activations are recomputed.

    Args:
        sources: the tokens of each block [D, G, T], and the states before it and perhaps after it, [D, G, S].
        matrix: [D, c T, K], from the tokens and states of a block to its outputs before GELU.
        project: the output projection, from [..., c D].
        dropout: probability of dropping an activation.
        dtype: of the inputs of the projection.
    """
    tokens, seed = sources[0], dropout_seed(dropout)
    block = tokens.shape[2]
    limit = CPU_LIMIT if tokens.device.type == "cpu" else DEVICE_LIMIT
    size = max(1, limit // (len(tokens) * max(matrix.shape[1:])))

    def read(number: int, matrix: Tensor, *columns: Tensor) -> Tensor:
        with torch.autocast(tokens.device.type, enabled=False):
            active = F.gelu(matrix @ torch.cat(columns, dim=-1).mT)  # [D, c T, blocks]
            factor = dropout_factor(active, dropout, seed, number)
            active = active if factor is None else active * factor
            by_token = active.unflatten(1, (-1, block)).permute(3, 2, 1, 0).flatten(2).to(dtype)  # [blocks, T, c D]
        return project(by_token)

    chunks = zip(*(x.split(size, dim=1) for x in sources), strict=True)
    return torch.cat([recompute(read, number, matrix, *columns) for number, columns in enumerate(chunks)])
