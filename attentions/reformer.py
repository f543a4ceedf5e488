"""Reformer (Kitaev et al. 2020): a token attends to tokens that random rotations hash near to it.

Shapes: B batch, H heads, R rounds, N tokens, E head dimension, m tokens per chunk.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.bases.bucketed import BucketedAttention
from attentions.kernels.buckets import BUCKET_ROUNDING, BucketWindow
from attentions.kernels.numerics import mask_value, recompute, upcast
from cab import PaddingMasks, Pattern, UserError, register_attention
from cab.attention import CommonArguments
from cab.claims import Claims
from cab.padding import lengths
from cab.registry.options import Even, Positive


@register_attention("reformer", patterns="NS CS", complexity="n", paper="Kitaev et al. 2020")
class ReformerAttention(BucketedAttention):
    """Compute softmax attention with shared queries and keys, k_j = q_j / |q_j|, over tokens with similar hashes.

    The bucket of a token in a round is argmax [q R; -q R] with random directions R (section 2). A pair that occurs in
    several rounds counts once (Eq. 6; the released code counts each occurrence). A token attends to itself only if it
    attends to nothing else. R is drawn for each call in training and is a buffer in evaluation.

    ``keys`` selects the tokens of a round:

    * ``chunks``, as published: tokens are sorted by bucket, then position, and cut into chunks of m. A token attends to
      its own chunk and to the one before, whatever their buckets. NS only: where chunks begin depends on all tokens.
    * ``buckets``: the tokens of the same bucket among the 2 m before it in the bucket, in NS m on either side. Causal
      in CS, where the published chunks would depend on later tokens.

    Time is N R (E buckets / 2 + 2 m). Decoding keeps keys, values and buckets of all tokens.

    Args:
        num_buckets: even (published: about 2 N / m).
        chunk_size: m.
        rounds: R. The paper trains with 1 to 8, its released models with 1 or 2.
        key_norm: ``scaled`` for keys of length sqrt(E), so that logits are q_i k_j / |k_j|, as in the authors' code;
            ``unit`` divides them by sqrt(E), as the paper writes.
        keys: ``chunks`` or ``buckets``. None: ``chunks`` in NS, ``buckets`` in CS.
    """

    claims = Claims(noncausal_rounding=BUCKET_ROUNDING)

    rotations: Tensor

    def __init__(
        self,
        *,
        num_buckets: Even = 64,
        chunk_size: Positive = 64,
        rounds: Positive = 2,
        key_norm: Literal["unit", "scaled"] = "scaled",
        keys: str | None = None,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        both = self.pattern is Pattern.NS
        self.keys = ("chunks" if both else "buckets") if keys is None else keys
        if self.keys not in ("chunks", "buckets") or (self.keys == "chunks" and not both):
            raise UserError(f"keys must be 'buckets', or in NS 'chunks', got '{keys}'")
        self.num_buckets, self.chunk_size, self.rounds, self.key_norm = num_buckets, chunk_size, rounds, key_norm
        self.bucket_window = (
            BucketWindow(chunk_size, chunk_size, False) if both else BucketWindow(2 * chunk_size, 0, False)
        )
        self.register_buffer("rotations", self.new_rotations(torch.empty(0)))

    def make_projections(self) -> None:
        """Make the maps to queries, from which keys are made, to values, and of the output."""
        super().make_projections()
        del self.k_proj

    def project(self, query: Tensor, _key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = self.exactly(self.q_proj, query)
        length = 1.0 if self.key_norm == "unit" else self.head_dim**0.5
        return heads, F.normalize(heads, dim=-1) * length, self.split_heads(self.v_proj(value))

    def new_rotations(self, like: Tensor) -> Tensor:
        """Return random directions, [R, H, E, buckets / 2]."""
        shape = (self.rounds, self.num_heads, self.head_dim, self.num_buckets // 2)
        return torch.randn(shape, dtype=like.dtype, device=like.device)

    def sample_noise(self, query: Tensor, _key: Tensor, _padding: PaddingMasks) -> dict[str, Tensor]:
        rotations = self.new_rotations(self.rotations) if self.training else self.rotations
        return {"rotations": rotations.expand(len(query), -1, -1, -1, -1)}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks, **draws: Tensor) -> Tensor:
        if self.keys == "buckets":
            return super().attend(query, key, value, padding, **draws)
        buckets = self.assign(query, **draws)
        if padding.key is not None:
            buckets = buckets.masked_fill(padding.key.unsqueeze(1), self.num_buckets)
        count, dropout = lengths(key, padding.key), self.weight_dropout
        return chunk_attention(query, key, value, buckets, count, self.chunk_size, dropout=dropout)

    def reference(self, query: Tensor, key: Tensor, value: Tensor, **draws: Tensor) -> Tensor:
        if self.keys == "buckets":
            return super().reference(query, key, value, **draws)
        rounds = self.assign(query[None], **{name: x[None] for name, x in draws.items()})[:, 0]
        chunks = [buckets.argsort(dim=-1, stable=True).argsort(dim=-1) // self.chunk_size for buckets in rounds]
        seen = torch.zeros_like(query @ key.mT, dtype=torch.bool)
        for previous, chunk in zip(chunks[-1:] + chunks[:-1], chunks, strict=True):
            behind = chunk.unsqueeze(-1) - chunk.unsqueeze(-2)
            seen |= (behind == 0) | (behind == 1)
            seen |= (chunk == 0).unsqueeze(-1) & (previous == previous.max()).unsqueeze(-2)
        itself = torch.eye(len(seen[0]), dtype=torch.bool, device=seen.device)
        return self.weigh(query @ key.mT * self.scale, seen & ~itself, itself) @ value

    @torch.no_grad()
    def assign(self, query: Tensor, rotations: Tensor | None = None) -> Tensor:
        rotations = self.rotations if rotations is None else rotations[0]
        with torch.autocast(query.device.type, enabled=False):
            return torch.stack([self.hash(query.to(rotation.dtype) @ rotation) for rotation in rotations])

    def hash(self, projected: Tensor) -> Tensor:
        """Return argmax [x; -x] over the last dimension."""
        high, low = projected.max(dim=-1), projected.min(dim=-1)
        return torch.where(high.values >= -low.values, high.indices, low.indices + projected.shape[-1])


def chunk_attention(
    query: Tensor, key: Tensor, value: Tensor, buckets: Tensor, count: Tensor, size: int, *, dropout: float = 0.0
) -> Tensor:
    """Return softmax(q_i k_j / sqrt(E)) v_j over the keys of the chunks; a single token returns its value.

    Args:
        query, key, value: [B, H, N, E]; keys must not depend on other tokens.
        buckets: bucket of each token, largest for padding, [R, B, H, N].
        count: tokens of each row without padding, [B].
        size: tokens m per chunk.
        dropout: probability of dropping a weight.
    """
    chunks = Chunks.of(buckets.flatten(1, 2), count.repeat_interleave(query.shape[1]), size)
    q, k, v = (upcast(x).flatten(0, 1) for x in (query * query.shape[-1] ** -0.5, key, value))
    outputs, sums = [], []
    for number in range(len(buckets)):
        means, mass = recompute(_round, q, k, v, chunks, number, dropout, draws=dropout > 0.0)
        outputs.append(means)
        sums.append(mass)
    shares = torch.stack(sums).softmax(dim=0)
    output = sum(share.unsqueeze(-1) * x for share, x in zip(shares, outputs, strict=True))
    output = torch.where((count.repeat_interleave(query.shape[1]) == 1)[:, None, None], v, output)
    return output.view_as(query).to(query.dtype)


class Chunks(NamedTuple):
    """Sorted sequences in chunks.

    Attributes:
        tokens: token of each slot of the sorted sequences, filled up to whole chunks, [R, G, C, m].
        exists: whether a slot has a token that is not padding, [G, C, m].
        chunk: chunk of each token, [R, G, N].
        slot: slot of each token, [R, G, N].
        last: last chunk of each row, [G].
    """

    tokens: Tensor
    exists: Tensor
    chunk: Tensor
    slot: Tensor
    last: Tensor

    @classmethod
    def of(cls, buckets: Tensor, count: Tensor, size: int) -> Chunks:
        """Sort and cut sequences with ``buckets`` [R, G, N], of which ``count`` [G] tokens are not padding."""
        order = buckets.argsort(dim=-1, stable=True)
        position = torch.arange(order.shape[-1], device=order.device)
        slot = torch.empty_like(order).scatter_(-1, order, position.expand_as(order))
        tokens = F.pad(order, (0, -order.shape[-1] % size)).unflatten(-1, (-1, size))
        slots = torch.arange(tokens.shape[2] * size, device=order.device).view(-1, size)
        last = (count - 1).clamp(min=0) // size
        return cls(tokens, slots < count[:, None, None], slot // size, slot, last)

    def with_previous(self, x: Tensor, before: Tensor) -> Tensor:
        """Join what slots [G, C, m] contain with the chunk before; ``before`` is that of the preceding round."""
        group = torch.arange(len(x), device=x.device)
        first = before[group, self.last].unsqueeze(1)
        return torch.cat([x, torch.cat([first, x[:, :-1]], dim=1)], dim=2)

    def shared_rounds(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return how often pairs of tokens [G, C, m] and [G, C, 2 m] occur in all rounds, [G, C, m, 2 m]."""
        count = torch.zeros(*queries.shape, keys.shape[2], dtype=torch.int16, device=keys.device)
        for number, chunk in enumerate(self.chunk):
            of_query, of_key = (_at(chunk, x).to(torch.int16).unsqueeze(dim) for x, dim in ((queries, 3), (keys, 2)))
            count += ((of_query - of_key) >> 1) == 0  # the same chunk, or the one before
            is_last = _at(self.chunk[number - 1] == self.last.unsqueeze(1), keys).unsqueeze(2)
            count += (of_query == 0) & is_last
        return count


def _round(
    query: Tensor, key: Tensor, value: Tensor, chunks: Chunks, number: int, dropout: float
) -> tuple[Tensor, Tensor]:
    """Return the means [G, N, E] of one round and the logarithms of their sums of weights [G, N]."""
    queries = chunks.tokens[number]
    keys = chunks.with_previous(queries, chunks.tokens[number - 1])
    logits = _at(query, queries) @ _at(key, keys).mT
    logits = logits - chunks.shared_rounds(queries, keys).clamp_(min=1).to(logits.dtype).log_()
    masked = ~chunks.with_previous(chunks.exists, chunks.exists).unsqueeze(2)
    masked = masked | (queries.unsqueeze(3) == keys.unsqueeze(2))
    logits = logits.masked_fill(masked, mask_value(logits.dtype))
    weights = F.dropout(logits.softmax(dim=-1), dropout)
    slot = chunks.slot[number]
    means, sums = (weights @ _at(value, keys)).flatten(1, 2), logits.logsumexp(dim=-1).flatten(1, 2)
    return _at(means, slot), _at(sums, slot)


def _at(x: Tensor, index: Tensor) -> Tensor:
    """Return the tokens ``index`` [G, ...] of [G, N] or [G, N, E]."""
    flat = index.flatten(1)
    if x.dim() == 2:
        return x.gather(1, flat).view(index.shape)
    return x.gather(1, flat.unsqueeze(2).expand(-1, -1, x.shape[2])).view(*index.shape, x.shape[2])
