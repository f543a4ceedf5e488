"""TransNormer (Qin et al. 2022): attention within blocks in early layers, linear attention with a norm in late ones.

Shapes: B batch, H heads, N tokens, E width of a head, w tokens of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.linearized import mask_fill
from attentions.bases.sparse import SparseAttention
from attentions.kernels.chunks import Extras, Heads, over_chunks
from attentions.kernels.grid2d import along, in_rows
from attentions.kernels.layers import MergedNorm, Norm, turn
from attentions.kernels.numerics import upcast
from attentions.kernels.recurrence import recurrence
from cab import Attention, DecodeState, LayerPosition, PaddingMasks, Pattern, register_attention
from cab.attention import SINGLE_LAYER, CommonArguments, Decoded
from cab.claims import NUM_TOKENS, Claims, softmax_if
from cab.padding import lengths
from cab.registry.options import Positive

KERNELS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu1": lambda x: F.elu(x) + 1.0,
    "elu": F.elu,
    "relu": F.relu,
    "identity": lambda x: x,
}

Positions = Literal["none", "lrpe"]


@register_attention("norm_attention", patterns="NS CS NC CC", complexity="n", paper="Qin et al. 2022")
class NormAttention(Attention):
    """Compute XNorm(phi(q) (phi(k)^T v)), j <= i in CS (Eq. 14), with one norm over all heads, without 1/sqrt(E).

    Nothing divides by a sum of weights, so weights may be negative and gradients stay bounded (their Eq. 15). Of the
    first token of CS only the direction of v remains. Sums are formed in float32 at least; a padded key has no
    features. ``dropout`` is not used. The state of decoding is the sums phi(k)^T v and the number of tokens.

    Args:
        kernel: phi: elu1 (1 + elu, the paper's T2 and its ablations), elu (T1), relu or identity.
        norm: simplerms, x / (rms + 1e-8), as run; rms, with a weight; layer; none (the paper's Table 1 has perplexity
            797 with it).
        positions: none, the paper's text; lrpe, what its released configurations switch on in every layer: features are
            reflected and turned by their position, so that weights may be negative for any kernel.
    """

    requires_right_padding = True
    has_constant_size_state = True

    def __init__(
        self,
        *,
        kernel: Literal["elu1", "elu", "relu", "identity"] = "elu1",
        norm: Norm = "simplerms",
        positions: Positions = "none",
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        self.kernel = KERNELS[kernel]
        self.norm = MergedNorm(norm, self.embed_dim)
        self.rotary = make_rotary(positions, self.head_dim)

    def features(self, x: Tensor, start: Tensor | None = None) -> Tensor:
        """Compute phi(x) of heads [B, H, N, E], whose first token follows ``start`` [B] tokens."""
        return rotated(self.rotary, self.kernel(x), start)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        phi_q, phi_k = (
            x if self.rotary is None else rotated_by_matrices(self.rotary, x)
            for x in (self.kernel(query), self.kernel(key))
        )
        weights = phi_q @ phi_k.mT
        if self.pattern is Pattern.CS:
            weights = weights.tril()
        return self.norm((weights @ value)[None])[0]

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        sums = upcast(like.new_zeros(batch_size, self.num_heads, self.head_dim, self.head_dim))
        return {"sums": sums, "length": torch.zeros(batch_size, dtype=torch.long, device=like.device)}

    def decode(self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks) -> Decoded:
        with torch.autocast(query.device.type, enabled=False):
            heads = [upcast(x) for x in (query, key, value)]
            output, state = over_chunks(self.decode_chunk, heads, padding.key, state, {})
            return output.to(query.dtype), state

    def decode_chunk(self, heads: Heads, padding: Tensor | None, state: DecodeState, _extras: Extras) -> Decoded:
        query, key, value = heads
        start = state["length"]
        keys = mask_fill(self.features(key, start), padding)
        output, sums = recurrence(self.features(query, start), keys, value, None, state["sums"])
        return self.norm(output), {"sums": sums, "length": start + lengths(query, padding)}

    def encode_source(self, key: Tensor, value: Tensor, padding: PaddingMasks) -> DecodeState:
        with torch.autocast(key.device.type, enabled=False):
            sums = mask_fill(self.features(upcast(key)), padding.key).mT @ upcast(value)
        return {"sums": sums, "length": torch.zeros(len(key), dtype=torch.long, device=key.device)}

    def decode_cross(self, query: Tensor, state: DecodeState, padding: PaddingMasks) -> Decoded:
        with torch.autocast(query.device.type, enabled=False):
            output = self.norm(self.features(upcast(query), state["length"]) @ state["sums"])
        return output.to(query.dtype), {**state, "length": state["length"] + lengths(query, padding.query)}


def make_rotary(positions: str, head_dim: int) -> LinearizedRotary | None:
    """Return the map that adds positions to queries and keys."""
    return LinearizedRotary(head_dim) if positions == "lrpe" else None


def rotated(
    rotary: LinearizedRotary | None, x: Tensor, start: Tensor | None = None, period: int | None = None
) -> Tensor:
    """Rotate ``x`` [B, H, N, E] by positions that start at ``start`` [B] and restart after each period."""
    if rotary is None:
        return x
    position = torch.arange(x.shape[2], device=x.device)[None]
    if start is not None:
        position = start[:, None] + position
    return rotary(x, position if period is None else position % period)


def rotated_by_matrices(rotary: LinearizedRotary, x: Tensor) -> Tensor:
    """Add positions to one sequence [H, n, E] by one matrix per token, for readable forms."""
    width = x.shape[-1]
    u = rotary.direction.to(x.dtype)
    reflection = torch.eye(width, dtype=x.dtype) - 2 * torch.outer(u, u)
    tokens = []
    for t in range(x.shape[1]):
        cos, sin = (t * rotary.theta).cos(), (t * rotary.theta).sin()
        blocks = torch.stack([cos, -sin, sin, cos], dim=-1).view(-1, 2, 2).to(x.dtype)
        turn = torch.block_diag(*blocks, *[x.new_ones(1, 1)] * (width % 2))
        tokens.append(x[:, t] @ (turn @ reflection).mT)
    return torch.stack(tokens, dim=1)


BASE = 10_000.0


class LinearizedRotary(nn.Module):
    """Compute R(t) (I - 2 u u^T) x at position t; products depend on the difference of positions only.

    u is a random unit vector that stays as it is drawn; R(t) turns coordinates 2i and 2i + 1 by t theta_i, where theta
    is learned and starts as BASE^(-2i / E). Of an odd width the last coordinate does not turn.
    """

    direction: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        pairs = torch.arange(width // 2, dtype=torch.float64)
        self.theta = nn.Parameter((BASE ** (-2 * pairs / width)).to(torch.get_default_dtype()))
        self.register_buffer("direction", nn.functional.normalize(torch.randn(width), dim=0))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        """Transform ``x`` [B, H, N, E] of tokens at ``position`` [B or 1, N]."""
        u = self.direction.to(x.dtype)
        x = x - 2.0 * (x @ u).unsqueeze(-1) * u
        angle = position.double()[:, None, :, None] * self.theta.double()  # in float32 it is off at late positions
        turning = 2 * len(self.theta)
        turned = turn(x[..., :turning], angle)
        return turned if turning == x.shape[-1] else torch.cat([turned, x[..., turning:]], dim=-1)


@register_attention("diag_attention", patterns="NS CS", complexity="n", paper="Qin et al. 2022")
class DiagAttention(SparseAttention):
    """Compute sum_j f(q_i k_j / sqrt(E)) v_j over the tokens j of the own block of w tokens, with j <= i in CS.

    Section 4.3 of the paper. f is softmax (TransNormer T2), or ReLU followed by an RMS norm over all heads of a token,
    x / (rms + 1e-8) (T1, after Zhang et al. 2021, whose norm has a gate). The last block has as many keys as tokens;
    the released code pads it with zero keys, which take a share of its softmax, and does not mask padding. The decode
    state has constant size: the keys and values of the open block.

    Args:
        block_size: tokens w per block.
        weights: ``softmax`` or ``rela`` (ReLU).
        positions: ``none``, as in the paper's text; ``lrpe``, as in the released configurations: queries and keys are
            reflected and rotated by their position in the block.
    """

    claims = Claims(softmax_limit=softmax_if(block_size=NUM_TOKENS))
    has_constant_size_state = True

    def __init__(
        self,
        *,
        block_size: Positive = 64,
        weights: Literal["softmax", "rela"] = "softmax",
        positions: Positions = "none",
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        self.block_size, self.is_softmax = block_size, weights == "softmax"
        self.max_kept = block_size - 1
        self.norm = MergedNorm("none" if self.is_softmax else "simplerms", self.embed_dim)
        self.rotary = make_rotary(positions, self.head_dim)

    def is_visible(self, query: Tensor, key: Tensor, _length: int) -> Tensor:
        seen = query // self.block_size == key // self.block_size
        return seen & (key <= query) if self.pattern is Pattern.CS else seen

    def required_keys(self, key: Tensor, length: Tensor) -> Tensor:
        return key // self.block_size == length // self.block_size

    def seen_weights(self, logits: Tensor, seen: Tensor) -> Tensor:
        return super().seen_weights(logits, seen) if self.is_softmax else logits.relu().masked_fill(~seen, 0.0)

    def attend_visible(self, query: Tensor, key: Tensor, value: Tensor, *, hidden: Tensor | None = None) -> Tensor:
        length, causal = query.shape[2], self.pattern is Pattern.CS
        width = min(self.block_size, length)
        if self.is_softmax:
            dropout = self.weight_dropout
            return along(query, key, value, width, by_column=False, is_causal=causal, hidden=hidden, dropout=dropout)
        if hidden is not None:
            key = key.masked_fill(hidden[:, None, :, None], 0.0)  # ReLU of zero is no weight
        with torch.autocast(query.device.type, enabled=False):  # what no sum divides outgrows float16 before its norm
            query, key, value = (in_rows(upcast(x), width) for x in (query, key, value))
            weights = (query * self.scale @ key.mT).relu()  # none of the keys that fill the last block up
            weights = F.dropout(weights.tril() if causal else weights, self.weight_dropout)
            return (weights @ value).flatten(2, 3)[:, :, :length]

    def read(self, query: Tensor, key: Tensor, value: Tensor, query_position: Tensor, position: Tensor) -> Tensor:
        if self.is_softmax:
            return super().read(query, key, value, query_position, position)
        with torch.autocast(query.device.type, enabled=False):
            return super().read(upcast(query), upcast(key), upcast(value), query_position, position)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        query, key = (rotated(self.rotary, x, period=self.block_size) for x in (query, key))
        return self.normalize(super().attend(query, key, value, padding), query.dtype)

    def decode(
        self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks, **_: Tensor
    ) -> Decoded:
        query, key = (rotated(self.rotary, x, state["length"], self.block_size) for x in (query, key))
        output, state = super().decode(query, key, value, state, padding)
        return self.normalize(output, query.dtype), state

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.rotary is not None:
            query, key = (rotated_by_matrices(self.rotary, x) for x in (query, key))
        return self.norm(super().reference(query, key, value)[None])[0]

    def normalize(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return self.norm(upcast(x)).to(dtype)


class TransNormer(Attention):
    """Compute DiagAttention in layers 0 to L // 2 - 1 of the L of its kind, and NormAttention in the others (Figure 3).

    Of an odd number the middle one is late; so is a slot alone. The released code would leave the last layer out.

    Args:
        block_size: tokens of a block of DiagAttention.
        positions: none, the paper's text; lrpe, as released: see the two.
    """

    weights: ClassVar[Literal["softmax", "rela"]]
    """Weights of DiagAttention."""
    kernel: ClassVar[Literal["elu", "elu1"]]
    """Kernel of NormAttention."""

    requires_right_padding = True
    has_constant_size_state = True

    def __init__(
        self,
        *,
        block_size: int = 64,
        positions: Positions = "none",
        layer_position: LayerPosition = SINGLE_LAYER,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        is_early = layer_position.index < layer_position.num_layers // 2
        self.form: Attention = (
            DiagAttention(block_size=block_size, weights=self.weights, positions=positions, **common)
            if is_early
            else NormAttention(kernel=self.kernel, positions=positions, **common)
        )

    def make_projections(self) -> None:
        """Create no projections: the form has its own."""

    def compute(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        return self.form.compute(query, key, value, padding)

    def compute_row(self, query: Tensor, key: Tensor, value: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
        return self.form.compute_row(query, key, value, draws)

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        assert self.form.init_decode_state is not None
        return self.form.init_decode_state(batch_size, like)

    def decode_inputs(self, tokens: Tensor, mask: Tensor | None, state: DecodeState) -> Decoded:
        return self.form.decode_inputs(tokens, mask, state)


@register_attention("transnormer_t1", patterns="NS CS", complexity="n", paper="Qin et al. 2022")
class TransNormerT1(TransNormer):
    """Compute TransNormer with ReLU in its blocks and elu as kernel."""

    weights = "rela"
    kernel = "elu"


@register_attention("transnormer_t2", patterns="NS CS", complexity="n", paper="Qin et al. 2022")
class TransNormerT2(TransNormer):
    """Compute TransNormer with softmax in its blocks and 1 + elu as kernel."""

    weights = "softmax"
    kernel = "elu1"
