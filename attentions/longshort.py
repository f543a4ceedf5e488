"""LongShort attention (Zhu et al. 2021): a window of the sequence, and compressed slots of all of it.

B batch, H heads, N tokens, D width, E width of a head, r slots of compressed keys and values (S in all chunks).
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from attentions.kernels.layers import depthwise_conv, value_convolution
from attentions.kernels.numerics import mask_value, upcast
from attentions.kernels.token_cache import gather_tokens
from attentions.kernels.window_attention import Chunks, Distances, Slots, Window, window_attention
from cab import Attention, DecodeState, PaddingMasks, Pattern, UserError, register_attention
from cab.attention import CommonArguments, Decoded
from cab.claims import Claims
from cab.padding import lengths, take_rows


class LongShort(Attention):
    """Base class of both forms: scores that compress tokens to slots, and the layer norms."""

    requires_right_padding = True
    claims = Claims(parameter_budget=0.12)  # as published: two maps of relative positions a layer, 11.7% of GPT-2

    def make_projections(self) -> None:
        """Initialize as published: torch's defaults in NS; Xavier normal without biases in CS."""
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            projection = nn.Linear(self.embed_dim, self.embed_dim, bias=self.pattern is not Pattern.CS)
            if self.pattern is Pattern.CS:
                nn.init.xavier_normal_(projection.weight)
            self.add_module(name, projection)

    def make_compression(self, slots_per_head: int) -> None:
        """Create the compression, the last of the parameters."""
        self.score = nn.Linear(self.embed_dim, self.num_heads * slots_per_head)
        self.token_norm = nn.LayerNorm(self.embed_dim)
        self.slot_norm = nn.LayerNorm(self.embed_dim)

    def key_side_inputs(self, x: Tensor) -> dict[str, Tensor]:
        """Compute the scores of each token for the slots, [B, N, H r]."""
        return {"score": self.score(x)}

    def normalize(self, norm: nn.LayerNorm, x: Tensor) -> Tensor:
        """Apply a layer norm over all heads to [B, H, N, E]."""
        return self.split_heads(norm(self.merge_heads(x)))

    def summary(self, x: Tensor, score: Tensor) -> Tensor:
        """Return the slots [H, r, E] of one sequence's tokens [H, n, E] with scores [n, H r]; for ``reference``."""
        weights = score.softmax(dim=0).unflatten(1, (self.num_heads, -1)).permute(1, 2, 0)
        return self.normalize(self.slot_norm, (weights @ x).unsqueeze(0))[0]


@register_attention("longshort", patterns="NS CS", complexity="n", paper="Zhu et al. 2021")
class LongShortAttention(LongShort):
    """Compute softmax(q [K_window; K~]^T / sqrt(E)) [V_window; V~] (CAB, Eq. 18).

    A :class:`SegmentedLongShort` in NS, a :class:`ChunkedLongShort` in CS. Tokens and slots have their own layer norms.

    Args:
        num_landmarks: NS only: number of slots r; default 16.
        window_size: window in tokens; default 15 (NS) or 256 (CS).
        conv_kernel_size: NS only: odd kernel size of a depthwise convolution of the values, per head; default none.
        chunk_size: CS only: tokens per chunk; default 32.
    """

    def __new__(  # type: ignore[misc]  # one of the two forms, which are no subclasses of it
        cls,
        *,
        num_landmarks: int | None = None,
        window_size: int | None = None,
        conv_kernel_size: int | None = None,
        chunk_size: int | None = None,
        **common: Unpack[CommonArguments],
    ) -> LongShort:
        pattern = Pattern.parse(common["pattern"])
        segmented = {"num_landmarks": num_landmarks, "conv_kernel_size": conv_kernel_size}
        chunked = {"chunk_size": chunk_size}
        options, others = (chunked, segmented) if pattern is Pattern.CS else (segmented, chunked)
        for name, size in others.items():
            if size is not None:
                raise UserError(f"{name} is not supported in pattern {pattern}, got {size}; remove the option")
        sizes = {name: size for name, size in {**options, "window_size": window_size}.items() if size is not None}
        for name, size in sizes.items():
            if size < 1:
                raise UserError(f"{name} must be at least 1, got {size}")
        return (ChunkedLongShort if pattern is Pattern.CS else SegmentedLongShort)(**common, **sizes)


class SegmentedLongShort(LongShort):
    """Compute the NS form: K~ = LN(P^T K), V~ = LN(P^T V) with P = softmax over positions of x W_P.

    There are r slots per head. A query attends to its segment of ``window_size`` tokens, half a segment on either side,
    and all slots.
    """

    def __init__(
        self,
        *,
        num_landmarks: int = 16,
        window_size: int = 15,
        conv_kernel_size: int | None = None,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        self.window = Window(window_size // 2, window_size // 2, window_size)
        self.conv = value_convolution(self.num_heads, conv_kernel_size)
        if self.conv is not None:
            nn.init.zeros_(self.conv.weight)
        self.make_compression(num_landmarks)

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().project(query, key, value)
        return query, self.normalize(self.token_norm, key), self.normalize(self.token_norm, value)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks, score: Tensor) -> Tensor:
        score = upcast(score)
        if padding.key is not None:
            score = score.masked_fill(padding.key.unsqueeze(-1), mask_value(score.dtype))
        weights = score.softmax(dim=1).unflatten(-1, (self.num_heads, -1)).permute(0, 2, 3, 1)
        slot_key, slot_value = (self.normalize(self.slot_norm, weighted_sum(weights, x)) for x in (key, value))
        output = window_attention(
            query,
            key,
            value,
            self.window,
            slots=Slots(slot_key, slot_value),
            key_padding_mask=padding.key,
            dropout=self.weight_dropout,
        )
        if self.conv is None:
            return output
        real = value if padding.key is None else value.masked_fill(padding.key[:, None, :, None], 0.0)
        return output + depthwise_conv(real, self.conv.weight)

    def reference(self, query: Tensor, key: Tensor, value: Tensor, score: Tensor) -> Tensor:
        slot_key, slot_value = self.summary(key, score), self.summary(value, score)
        i, j = torch.arange(len(score))[:, None], torch.arange(len(score))
        start = i // self.window.segment * self.window.segment
        outside = (j < start - self.window.left) | (j >= start + self.window.segment + self.window.right)
        logits = (query @ key.mT * self.scale).masked_fill(outside, -torch.inf)
        weights = torch.cat([logits, query @ slot_key.mT * self.scale], dim=-1).softmax(dim=-1)
        output = weights @ torch.cat([value, slot_value], dim=1)
        return output if self.conv is None else output + self.conv(value.unsqueeze(0))[0]


class ChunkedLongShort(LongShort):
    """Compute the CS form: each chunk of the sequence gives one slot per head, with a softmax P within the chunk.

    A query attends to the last ``window_size`` tokens with the relative positions and biases of Transformer-XL, to all
    earlier tokens of its chunk, and to the slots of earlier chunks, which have relative positions of their own. In
    contrast to the released code, tokens of the query's chunk that are older than the window are visible, and no zeros
    before the sequence take part in the softmax. Time is linear in the length, plus one slot per ``chunk_size`` tokens.
    Decoding stores keys and values of the last tokens, of constant size, and two vectors of width D per slot.
    """

    def __init__(self, *, window_size: int = 256, chunk_size: int = 32, **common: Unpack[CommonArguments]) -> None:
        super().__init__(**common)
        self.chunks = Chunks(window_size, chunk_size, before=0)
        self.num_distances = max(window_size, chunk_size)
        self.key_position = nn.Linear(self.embed_dim, self.embed_dim, bias=False)
        self.slot_position = nn.Linear(self.embed_dim, self.embed_dim)
        self.content_bias = nn.Parameter(torch.zeros(self.num_heads, self.head_dim))
        self.position_bias = nn.Parameter(torch.zeros(self.num_heads, self.head_dim))
        self.make_compression(1)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, _padding: PaddingMasks, score: Tensor) -> Tensor:
        """Attend to window and slots; padding is at the right end, and keys and values are not yet normalized."""
        finished = (query.shape[2] - 1) // self.chunks.size
        slot_key, slot_value = (self.compress(x, score, finished) for x in (key, value))
        return self.read(query, key, value, Slots(slot_key, slot_value, chunks=self.chunks))

    def read(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        slots: Slots,
        offset: int = 0,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Attend to heads [B, H, N, E] of keys and values before the norm, and to slots without positions."""
        embedded = self.embed_distances(self.key_position, self.num_distances)
        biases = torch.einsum("hwe,he->hw", embedded, self.position_bias - self.content_bias)
        return window_attention(
            query,
            self.normalize(self.token_norm, key),
            self.normalize(self.token_norm, value),
            Window(self.num_distances - 1, 0, offset=offset),
            slots=slots._replace(embeddings=self.embed_distances(self.slot_position, slots.key.shape[2])),
            distances=Distances(embedded, biases, self.content_bias / self.scale),
            key_padding_mask=key_padding_mask,
            dropout=self.weight_dropout,
        )

    def compress(self, x: Tensor, score: Tensor, num_chunks: int) -> Tensor:
        """Compress the first chunks of ``x`` [B, H, N, E] by scores [B, N, H] to slots [B, H, num_chunks, E]."""
        length = num_chunks * self.chunks.size
        weights = upcast(score[:, :length]).unflatten(1, (num_chunks, self.chunks.size)).softmax(dim=2)
        weights = weights.permute(0, 3, 1, 2).unsqueeze(3)
        chunks = x[:, :, :length].unflatten(2, (num_chunks, self.chunks.size))
        return self.normalize(self.slot_norm, weighted_sum(weights, chunks).flatten(2, 3))

    def embed_distances(self, projection: nn.Linear, count: int) -> Tensor:
        """Return projected sinusoids of the distances count - 1 to 0, [H, count, E]."""
        weight = projection.weight
        rate = 10000.0 ** (-torch.arange(0, self.embed_dim, 2, device=weight.device) / self.embed_dim)
        angle = torch.arange(count - 1, -1, -1, device=weight.device).unsqueeze(1) * rate
        sinusoid = torch.cat([angle.sin(), angle.cos()], dim=-1)[:, : self.embed_dim]
        return self.split_heads(projection(sinusoid.to(weight.dtype).unsqueeze(0))).squeeze(0)

    def reference(self, query: Tensor, key: Tensor, value: Tensor, score: Tensor) -> Tensor:
        window, size = self.chunks[:2]
        query, finished = query * self.scale, (len(score) - 1) // size
        chunks = [slice(begin, begin + size) for begin in range(0, finished * size, size)]
        slot_key, slot_value = (
            torch.cat([x[:, :0], *(self.summary(x[:, chunk], score[chunk]) for chunk in chunks)], dim=1)
            for x in (key, value)
        )
        key, value = (self.normalize(self.token_norm, x.unsqueeze(0))[0] for x in (key, value))
        i, j, s = torch.arange(len(score))[:, None], torch.arange(len(score)), torch.arange(finished)
        hidden = torch.cat([(j > i) | (i - j >= window) & (j < i // size * size), s >= i // size], dim=1)
        by_key = (query + self.content_bias.unsqueeze(1)) @ key.mT
        by_key = by_key + self.at_distance(query + self.position_bias.unsqueeze(1), self.key_position, i - j)
        by_slot = query @ slot_key.mT + self.at_distance(query, self.slot_position, i // size - 1 - s)
        weights = torch.cat([by_key, by_slot], dim=-1).masked_fill(hidden, -torch.inf).softmax(dim=-1)
        return weights @ torch.cat([value, slot_value], dim=1)

    def at_distance(self, query: Tensor, projection: nn.Linear, distance: Tensor) -> Tensor:
        """Multiply queries [H, N, E] with the embeddings of nonnegative distances [N, M]: [H, N, M]."""
        embedded = self.embed_distances(projection, len(distance)).flip(1)
        return torch.einsum("hie,hije->hij", query, embedded[:, distance.clamp(min=0)])

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return an empty state.

        It holds the projections of the tokens that later tokens can still need, the slots of complete chunks, and the
        number of tokens.
        """
        past = self.num_distances - 1
        tokens = like.new_zeros(batch_size, past, self.embed_dim)
        slots = like.new_zeros(batch_size, self.num_heads, 0, self.head_dim)
        return {
            "key": tokens,
            "value": tokens,
            "score": like.new_zeros(batch_size, past, self.num_heads),
            "slot_key": slots,
            "slot_value": slots,
            "length": torch.zeros(batch_size, dtype=torch.long, device=like.device),
        }

    def decode(
        self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks, score: Tensor
    ) -> Decoded:
        num_tokens, size, read, count = query.shape[2], self.chunks.size, state["length"], lengths(query, padding.query)
        new = {"key": self.merge_heads(key), "value": self.merge_heads(value), "score": score}
        source = {name: torch.cat([state[name], x], dim=1) for name, x in new.items()}
        begin, laid, hidden = self._lay_out(source, read, count, num_tokens)
        heads = {name: self.split_heads(laid[name]) for name in ("key", "value")}
        num_slots, slots = state["slot_key"].shape[2], {}
        for name, x in heads.items():
            finished = self.compress(x[:, :, begin:], laid["score"][:, begin:], (size - 1 + num_tokens) // size)
            slots[f"slot_{name}"] = torch.cat([state[f"slot_{name}"].to(finished.dtype), finished], dim=2)
        # Queries stand where their tokens do, by as much to the right as the row's open chunk holds.
        is_open = (read % size).unsqueeze(1)
        query_position = torch.arange(size - 1 + num_tokens, device=query.device) - is_open
        slot = torch.arange(slots["slot_key"].shape[2], device=query.device)
        output = self.read(
            self.split_heads(take_rows(self.merge_heads(query), query_position.clamp(0, num_tokens - 1))),
            **heads,
            slots=Slots(
                slots["slot_key"],
                slots["slot_value"],
                chunks=self.chunks._replace(before=num_slots),
                padding_mask=slot < num_slots - self._num_slots(read).unsqueeze(1),
            ),
            offset=begin,
            key_padding_mask=hidden,
        )
        output = take_rows(self.merge_heads(output), is_open + torch.arange(num_tokens, device=query.device))
        return self.split_heads(output), self._keep(source, slots, num_slots, read, count)

    def _num_slots(self, length: Tensor) -> Tensor:
        """Return the number of slots of the complete chunks of ``length`` tokens."""
        return length // self.chunks.size

    def _lay_out(
        self, source: dict[str, Tensor], read: Tensor, count: Tensor, num_tokens: int
    ) -> tuple[int, dict[str, Tensor], Tensor]:
        """Align past and new tokens so that the open chunk of every sequence begins at the same position.

        Returns:
            That position, the tokens, and the mask of empty positions, [B, M].
        """
        past, size = source["key"].shape[1] - num_tokens, self.chunks.size
        begin = -(-past // size) * size
        column = torch.arange(begin + size - 1 + num_tokens, device=read.device)
        index = column + (past - begin - read % size).unsqueeze(1)
        hidden = (index < (past - read).unsqueeze(1)) | (index >= (past + count).unsqueeze(1))
        index = index.clamp(0, past + num_tokens - 1)
        return begin, {name: take_rows(x, index) for name, x in source.items()}, hidden

    def _keep(
        self, source: dict[str, Tensor], slots: dict[str, Tensor], num_slots: int, read: Tensor, count: Tensor
    ) -> DecodeState:
        """Return the state after ``count`` more tokens.

        Slots are right-aligned, so the last one has the same distance from the open chunk in every sequence.
        """
        tokens = count.unsqueeze(1) + torch.arange(self.num_distances - 1, device=read.device)
        state = {name: take_rows(x, tokens) for name, x in source.items()}
        width = int(self._num_slots(read + count).max())
        end = num_slots + self._num_slots(read % self.chunks.size + count)
        index = (end.unsqueeze(1) + torch.arange(-width, 0, device=read.device)).clamp(min=0)
        for name, x in slots.items():
            state[name] = gather_tokens(x, index)
        return state | {"length": read + count}


def weighted_sum(weights: Tensor, x: Tensor) -> Tensor:
    """Return ``weights x`` in the dtype of ``x``, summed in the dtype of ``weights`` also under autocast."""
    with torch.autocast(x.device.type, enabled=False):
        return (weights @ x.to(weights.dtype)).to(x.dtype)
