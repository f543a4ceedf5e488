"""YOSO (Zeng et al. 2021): weights given by collisions of random hashes of the query and the key.

Shapes: B batch, H heads, N targets, M keys, E head dimension, m hashes, tau hyperplanes per hash.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, Unpack

import torch
from annotated_types import Interval
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from attentions.bases.pairwise import PairwiseAttention
from attentions.kernels.numerics import upcast
from cab import Attention, DecodeState, PaddingMasks, register_attention
from cab.attention import CommonArguments, Decoded
from cab.claims import Claims
from cab.padding import lengths
from cab.registry.options import Positive

EDGE = 1e-6
"""Distance of a cosine from 1 and -1, where the slope of arccos is infinite."""

LONGEST_HASH = 16
"""Hyperplanes that are drawn for each hash; shorter hashes use the first of them."""

HashLength = Annotated[int, Interval(ge=1, le=LONGEST_HASH)]


class HashedAttention(Attention):
    """Base class of :class:`YosoAttention` and :class:`YosoExpectation`: the length of a hash."""

    claims = Claims(has_exact_gradient=False)
    autocast_dtypes = (torch.bfloat16,)  # small probabilities vanish in float16

    def __init__(self, *, hash_length: HashLength | None = None, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.hash_length = hash_length

    @property
    def weight_dropout(self) -> float:
        return 0.0

    def length_of_hash(self, count: Tensor) -> Tensor:
        """Return tau for sources with ``count`` keys."""
        if self.hash_length is not None:
            return torch.full_like(count, self.hash_length)
        bits = torch.arange(LONGEST_HASH, device=count.device)
        return (count.unsqueeze(-1) > 2**bits).sum(dim=-1).clamp(min=1)

    def longest_hash(self, num_keys: int) -> int:
        """Return the largest tau of sources with up to ``num_keys`` keys."""
        return self.hash_length or min(max(1, (num_keys - 1).bit_length()), LONGEST_HASH)


@register_attention("yoso_e", patterns="NS NC CC", complexity="n^2", paper="Zeng et al. 2021")
class YosoExpectation(HashedAttention, PairwiseAttention):
    """Compute YOSO-E, the expectation of YOSO: unit(sum_j p_ij v_j), p_ij = (1 - arccos(q_i k_j) / pi)^tau (Eq. 3, 6).

    Queries, keys, and outputs are unit vectors. p_ij is the probability that a query and a key are on the same side of
    all tau random hyperplanes. Time is quadratic. As in the published runs, the gradient of p_ij by the cosine is
    tau/2 p_ij, a lower bound of the derivative, which is infinite at 1. ``dropout`` is ignored, as in the released
    code. The sampled, linear form is ``yoso``.

    Args:
        hash_length: hyperplanes tau of one hash. None: ceil(log2 M) for M keys, as in the released configurations.
    """

    def probabilities(self, cosine: Tensor, tau: Tensor | int) -> Tensor:
        """Return the probability of a collision, with the published gradient."""
        weights = (1.0 - cosine.clamp(EDGE - 1.0, 1.0 - EDGE).arccos() / math.pi) ** tau
        return weights.detach() * (1.0 + (cosine - cosine.detach()) * tau / 2)

    def weigh(self, query: Tensor, key: Tensor, masked: Tensor | None, count: Tensor) -> Tensor:
        weights = self.probabilities(unit(query) @ unit(key).mT, self.length_of_hash(count))
        return weights if masked is None else weights.masked_fill(masked, 0.0)

    def finish(self, sums: Tensor) -> Tensor:
        return unit_sum(sums)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key = (x / x.norm(dim=-1, keepdim=True) for x in (query, key))
        tau = self.hash_length or max(1, math.ceil(math.log2(key.shape[1])))
        sums = self.probabilities(query @ key.mT, tau) @ value
        return sums / sums.norm(dim=-1, keepdim=True)


@register_attention("yoso", patterns="NS NC CC", complexity="n log n", paper="Zeng et al. 2021")
class YosoAttention(HashedAttention):
    """Compute unit(sum_j B_ij v_j), where B_ij is the fraction of m hashes in which unit query and key collide.

    A hash is the sign pattern of tau random hyperplanes. Values are summed in one table of 2^tau buckets per hash and
    read by the queries, so time is linear in the number of tokens but for the length of the hash. A query that
    collides with no key returns zero. The expectation of B_ij is the weight of ``yoso_e``.

    The gradient is the published estimate (section 3.3): the derivative of B_ij by the cosine is tau/2 B_ij. Its time
    grows with the number of collisions, about m N for unrelated tokens with the default length of the hash.

    Hyperplanes are drawn from a normal distribution, per head, for each call in training; in evaluation they are a
    buffer (the released code draws them there too). The released CUDA kernel replaces the product with them by a
    fast Hadamard transform. ``dropout`` is ignored, as in the released code.

    Causal self attention is undefined here: the tables of all prefixes take more memory than the keys of 8,000 tokens.
    The decode state of CC consists of the values and hash codes of the source.

    Args:
        num_hashes: hashes m (published: 16 to 64; 32 in the released configurations).
        hash_length: hyperplanes tau of one hash. None: ceil(log2 M) for M keys, as in the released configurations.
    """

    selects_tokens = True
    hyperplanes: Tensor

    def __init__(
        self, *, num_hashes: Positive = 32, hash_length: HashLength | None = None, **common: Unpack[CommonArguments]
    ) -> None:
        super().__init__(hash_length=hash_length, **common)
        self.num_hashes = num_hashes
        self.register_buffer("hyperplanes", self.new_hyperplanes(torch.empty(0)))

    def new_hyperplanes(self, like: Tensor) -> Tensor:
        """Return random normals of hyperplanes, [H, m, E, longest tau]."""
        shape = (self.num_heads, self.num_hashes, self.head_dim, self.hash_length or LONGEST_HASH)
        return torch.randn(shape, dtype=like.dtype, device=like.device)

    def sample_noise(self, query: Tensor, _key: Tensor, _padding: PaddingMasks) -> dict[str, Tensor]:
        planes = self.new_hyperplanes(self.hyperplanes) if self.training else self.hyperplanes
        return {"hyperplanes": planes.expand(len(query), -1, -1, -1, -1)}

    @torch.no_grad()
    def codes(self, x: Tensor, hyperplanes: Tensor, tau: Tensor, longest: int, hidden: Tensor | None) -> Tensor:
        """Return codes of ``tau`` [B] bits of [B, H, N, E], [m, B, H, N]; 2^longest where ``hidden`` [B, N]."""
        bit = torch.arange(longest, device=x.device)
        value = torch.where(bit < tau.unsqueeze(-1), 2**bit, 0)[:, None, None]
        planes = hyperplanes[0, ..., :longest].to(x.dtype).unbind(1)
        codes = torch.stack([((x @ plane > 0.0) * value).sum(dim=-1) for plane in planes])
        return codes if hidden is None else codes.masked_fill(hidden.unsqueeze(1), 2**longest)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks, hyperplanes: Tensor) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):
            q, k, v = unit(upcast(query)), unit(upcast(key)), upcast(value)
            tau, longest = self.length_of_hash(lengths(k, padding.key)), self.longest_hash(k.shape[2])
            query_codes, key_codes = (
                self.codes(x, hyperplanes, tau, longest, hidden).flatten(1, 2)
                for x, hidden in ((q, padding.query), (k, padding.key))
            )
            # The slope depends on the row, so it is a factor of the keys and the queries that the gradient reaches.
            root = (tau.to(q.dtype) / 2).sqrt()[:, None, None, None]
            flat_q, flat_k, flat_v = (x.flatten(0, 1) for x in (q * root, k * root, v))
            sums = collision_sums(flat_q, flat_k, flat_v, (query_codes, key_codes), 2**longest)
            return unit_sum(sums.view_as(q)).to(query.dtype)

    def reference(self, query: Tensor, key: Tensor, value: Tensor, hyperplanes: Tensor) -> Tensor:
        query, key = unit(query), unit(key)
        tau = self.hash_length or max(1, math.ceil(math.log2(key.shape[1])))
        sides = [torch.einsum("hne,hmet->hmnt", x, hyperplanes[..., :tau]) > 0 for x in (query, key)]
        share = (sides[0].unsqueeze(3) == sides[1].unsqueeze(2)).all(dim=-1).to(query.dtype).mean(dim=1)
        cosine = query @ key.mT
        sums = share * (1.0 + (cosine - cosine.detach()) * tau / 2) @ value
        return F.normalize(sums, dim=-1)

    def encode_source(self, key: Tensor, value: Tensor, padding: PaddingMasks) -> DecodeState:
        """Return the values of the source, the codes of its keys [B, H, M, m], and tau of each row."""
        tau = self.length_of_hash(lengths(key, padding.key))
        codes = self.codes(unit(upcast(key)), self.hyperplanes[None], tau, self.longest_hash(key.shape[2]), padding.key)
        return {"value": value, "codes": codes.permute(1, 2, 3, 0), "tau": tau}

    def decode_cross(self, query: Tensor, state: DecodeState, _padding: PaddingMasks) -> Decoded:
        with torch.autocast(query.device.type, enabled=False):
            longest = self.longest_hash(state["codes"].shape[2])
            codes = self.codes(unit(upcast(query)), self.hyperplanes[None], state["tau"], longest, None)
            count = collision_counts(codes, state["codes"].permute(3, 0, 1, 2), 2**longest)
            values = upcast(state["value"])
            return unit_sum(count.to(values.dtype) @ values / self.num_hashes).to(query.dtype), state


def unit(x: Tensor) -> Tensor:
    """Return unit vectors."""
    return F.normalize(x, dim=-1, eps=1e-6)


def unit_sum(sums: Tensor) -> Tensor:
    """Return unit vectors of sums whose weights may all be very small: nearly opposite keys leave 1e-9."""
    size = sums.detach().abs().amax(-1, keepdim=True)
    return unit(sums / size.where(size > 0.0, 1.0))


TABLE_ELEMENTS = 2**22
"""Elements of the tables in memory at once, if one hash needs fewer."""

PAIRS = 2**16
"""Colliding pairs in memory at once."""

SPARSE = 4
"""All pairs are formed if their number is below this factor times the number of collisions."""


def collision_sums(query: Tensor, key: Tensor, value: Tensor, codes: tuple[Tensor, Tensor], num_buckets: int) -> Tensor:
    """Return the mean over hashes of the sums of values in the buckets of the queries, [G, N, E].

    The gradient is that of YOSO (section 3.3): the derivative of the weight of a pair by the inner product of query and
    key is the weight, the share of hashes in which the pair collides.

    Args:
        query, key, value: [G, N, E] and twice [G, M, E]; query and key matter for the gradient alone.
        codes: codes of the queries, [m, G, N], and of the keys, [m, G, M].
        num_buckets: number of buckets, the code of padding.
    """
    return _Collisions.apply(query, key, value, *codes, num_buckets)


def collision_counts(query_codes: Tensor, key_codes: Tensor, num_buckets: int) -> Tensor:
    """Return the number of hashes in which queries [m, ..., N] and keys [m, ..., M] collide, [..., N, M]."""
    count = torch.zeros(*query_codes.shape[1:], key_codes.shape[-1], dtype=torch.int16, device=query_codes.device)
    for of_query, of_key in zip(query_codes, key_codes, strict=True):
        of_key = of_key.where(of_key < num_buckets, -1)  # padded keys collide with nothing
        count += of_query.unsqueeze(-1) == of_key.unsqueeze(-2)
    return count


class _Collisions(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_codes: Tensor,
        key_codes: Tensor,
        num_buckets: int,
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, query_codes, key_codes)
        ctx.num_buckets = num_buckets
        return _bucket_sums(query_codes, key_codes, value, num_buckets) / len(query_codes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, query_codes, key_codes = ctx.saved_tensors
        grad, size = grad / len(query_codes), ctx.num_buckets
        of_value = _bucket_sums(key_codes, query_codes, grad, size)
        of_query = _weighted_sums(query_codes, key_codes, grad, value, key, size)
        of_key = _weighted_sums(key_codes, query_codes, value, grad, query, size)
        return of_query, of_key, of_value, None, None, None


def _bucket_sums(read: Tensor, write: Tensor, x: Tensor, num_buckets: int) -> Tensor:
    """Return for each code of ``read`` [m, G, N] the sum of ``x`` [G, M, E] over the equal codes of ``write``."""
    groups, width = x.shape[0], x.shape[2]
    rows = groups * (num_buckets + 1)
    at_once = max(1, TABLE_ELEMENTS // max(rows * width, 1))
    output = x.new_zeros(groups * read.shape[2], width)
    group = torch.arange(groups, device=x.device).unsqueeze(1) * (num_buckets + 1)
    for begin in range(0, len(read), at_once):
        written, wanted = (codes[begin : begin + at_once] for codes in (write, read))
        first = torch.arange(len(written), device=x.device)[:, None, None] * rows + group
        table = x.new_zeros(len(written) * rows, width)
        index = (written + first).flatten().unsqueeze(1).expand(-1, width)
        table.scatter_add_(0, index, x.expand(len(written), -1, -1, -1).flatten(0, 2))
        table.view(-1, num_buckets + 1, width)[:, -1] = 0.0
        output += F.embedding_bag((wanted + first).flatten(1).T.contiguous(), table, mode="sum")
    return output.view(groups, -1, width)


def _weighted_sums(read: Tensor, write: Tensor, left: Tensor, right: Tensor, x: Tensor, num_buckets: int) -> Tensor:
    """Return sum_j count_ij (left_i right_j) x_j over the collisions of codes, [G, N, E]."""
    order = write.argsort(dim=-1)
    ordered = write.gather(-1, order)
    first = torch.searchsorted(ordered, read)
    number = (torch.searchsorted(ordered, read, right=True) - first).masked_fill_(read == num_buckets, 0)
    if int(number.sum()) * SPARSE > left.shape[0] * left.shape[1] * right.shape[1]:
        return _all_pairs(read, write, left, right, x, num_buckets)
    rows = torch.arange(write.shape[:2].numel(), device=x.device).view(*write.shape[:2], 1)
    active = number.flatten().nonzero()[:, 0]
    pairs = _Pairs(
        query=active % left.shape[:2].numel(),
        start=(first + rows * write.shape[2]).flatten()[active],
        number=number.flatten()[active],
        keys=(order + rows % len(x) * write.shape[2]).flatten(),
    )
    output = torch.zeros_like(left).flatten(0, 1)
    left, right, x = left.flatten(0, 1), right.flatten(0, 1), x.flatten(0, 1)
    for queries, keys, offsets in pairs.chunks():
        counts = offsets.diff(append=offsets.new_tensor([len(keys)]))
        weights = (left[queries.repeat_interleave(counts)] * right[keys]).sum(dim=-1)
        sums = F.embedding_bag(keys, x, offsets, mode="sum", per_sample_weights=weights)
        output.index_add_(0, queries, sums)
    return output.view(*read.shape[1:], -1)


class _Pairs(NamedTuple):
    """Colliding pairs by query: ``number`` keys of ``keys`` from ``start`` on, for each query of each hash."""

    query: Tensor
    start: Tensor
    number: Tensor
    keys: Tensor

    def chunks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield queries, the keys of one after another, and the offset of each query's first key."""
        ends = self.number.cumsum(0)
        total = int(ends[-1]) if len(ends) else 0
        limits = torch.arange(PAIRS, total + PAIRS, PAIRS, device=ends.device)
        bounds = [0, *torch.searchsorted(ends, limits, right=True).tolist()]
        for begin, end in itertools.pairwise(bounds):
            if begin < end:
                number = self.number[begin:end]
                offsets = number.cumsum(0) - number
                index = torch.arange(int(number.sum()), device=ends.device)
                index += (self.start[begin:end] - offsets).repeat_interleave(number)
                yield self.query[begin:end], self.keys[index], offsets


def _all_pairs(read: Tensor, write: Tensor, left: Tensor, right: Tensor, x: Tensor, num_buckets: int) -> Tensor:
    """Return what :func:`_weighted_sums` returns, from the counts of all pairs."""
    size = max(1, PAIRS * SPARSE // max(right.shape[:2].numel(), 1))
    output = torch.empty_like(left)
    for begin in range(0, left.shape[1], size):
        some = slice(begin, begin + size)
        count = collision_counts(read[..., some], write, num_buckets)
        output[:, some] = (left[:, some] @ right.mT * count) @ x
    return output
