"""LongShort attention (Zhu et al. 2021): a window of the sequence as it is, and all of it compressed.

Shapes: B batch, H heads, N tokens, D width, E width of a head, r slots of compressed keys and values.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.kernels.depthwise import depthwise_conv
from attentions.kernels.precision import no_weight, wide
from attentions.kernels.relative_window import Chunks, causal_longshort
from attentions.kernels.windowed import Window, windowed_attention
from cab import Attention, Pattern, register_attention
from cab.attention import Padding, State
from cab.errors import UserError
from cab.input_checks import check_decoding, check_tokens
from cab.padding import compact_rows, take_rows, without_padding


@register_attention("longshort", patterns="NS CS", complexity="n", paper="Zhu et al. 2021")
class LongShortAttention(Attention):
    """softmax(q [K_window; K~]^T / sqrt(E)) [V_window; V~]  (CAB, Eq. 18), in one form for each pattern.

    NS: K~ = LN(P^T K), V~ = LN(P^T V) with P = softmax over positions of x W_P, r slots a head. A query sees its
    segment of ``window_size`` tokens, half a segment on either side, and all slots.

    CS: the sequence is cut into chunks, and each gives ``chunk_rank`` slots, P being a softmax within the chunk.
    A query sees the last ``window_size`` tokens, with relative positions and biases as in Transformer-XL, all
    earlier ones of its own chunk, and the slots of the chunks before it, with relative positions of their own.
    The published code also hides tokens of the own chunk that are older than the window, and lets 1,024 zeros
    before the sequence take part in the softmax; this one does neither. Time is linear in the length but for the
    slots, one for ``chunk_size / chunk_rank`` tokens. Decoding keeps the last tokens' keys and values, of
    constant size, and two vectors of width D a slot.

    In both forms keys and values pass one layer norm, slots another.

    Args:
        num_landmarks: slots r of the NS form; 16 when not given.
        window_size: 15 (NS) or 256 (CS) when not given.
        conv_kernel_size: NS only: adds a depthwise convolution of the values over positions, one odd kernel
            a head; none when not given.
        chunk_size, chunk_rank: CS only: tokens of a chunk, and slots it gives; 32 and 1 when not given.

    Raises:
        ValueError: for sizes below 1, an even kernel, or an option of the other form.
    """

    compacts_padding = True
    parameter_budget = 0.12  # as published: two maps of relative positions a layer, 11.7% of GPT-2

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        num_landmarks: int | None = None,
        window_size: int | None = None,
        conv_kernel_size: int | None = None,
        chunk_size: int | None = None,
        chunk_rank: int | None = None,
    ) -> None:
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        causal = {"chunk_size": chunk_size, "chunk_rank": chunk_rank}
        noncausal = {"num_landmarks": num_landmarks, "conv_kernel_size": conv_kernel_size}
        for name, size in (noncausal if self.pattern is Pattern.CS else causal).items():
            if size is not None:
                raise UserError(f"{name} is no option of longshort's {self.pattern} form, got {size}; leave it out")
        for name, size in {**causal, **noncausal, "window_size": window_size}.items():
            if size is not None and size < 1:
                raise UserError(f"{name} must be at least 1, got {size}")
        if conv_kernel_size is not None and conv_kernel_size % 2 == 0:
            raise UserError(f"conv_kernel_size must be odd, got {conv_kernel_size}")
        if self.pattern is Pattern.CS:
            self.chunks = Chunks(window_size or 256, chunk_size or 32, chunk_rank or 1)
            self.slots_per_head = self.chunks.rank
            self.key_position = nn.Linear(embed_dim, embed_dim, bias=False)
            self.slot_position = nn.Linear(embed_dim, embed_dim)
            self.content_bias = nn.Parameter(torch.zeros(num_heads, self.head_dim))
            self.position_bias = nn.Parameter(torch.zeros(num_heads, self.head_dim))
        else:
            segment = window_size or 15
            self.window = Window(segment // 2, segment // 2, segment)
            self.slots_per_head = num_landmarks or 16
            self.conv = None
            if conv_kernel_size is not None:
                kernel, padding = (conv_kernel_size, 1), (conv_kernel_size // 2, 0)
                self.conv = nn.Conv2d(num_heads, num_heads, kernel, padding=padding, groups=num_heads, bias=False)
                nn.init.zeros_(self.conv.weight)
        self.score = nn.Linear(embed_dim, num_heads * self.slots_per_head)
        self.token_norm = nn.LayerNorm(embed_dim)
        self.slot_norm = nn.LayerNorm(embed_dim)

    def make_projections(self) -> None:
        """As published: torch's initialisation (NS); without biases, Xavier normal (CS)."""
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            projection = nn.Linear(self.embed_dim, self.embed_dim, bias=self.pattern is not Pattern.CS)
            if self.pattern is Pattern.CS:
                nn.init.xavier_normal_(projection.weight)
            self.add_module(name, projection)

    def compute(self, query: Tensor, _key: Tensor, _value: Tensor, padding: Padding) -> Tensor:
        query_padding_mask = padding.query
        if self.use_reference:
            return self.reference_rows(query, query_padding_mask)
        if self.pattern is Pattern.CS:
            return self.attend_chunks(query)
        return self.attend_segments(query, query_padding_mask)

    @property
    def weight_dropout(self) -> float:
        return self.dropout if self.training else 0.0

    def attend_segments(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """The NS form, [B, N, D] to [B, N, D]."""
        query = self.split_heads(self.q_proj(x))
        key = self.split_heads(self.token_norm(self.k_proj(x)))
        value = self.split_heads(self.token_norm(self.v_proj(x)))
        scores = wide(self.score(x))
        if padding_mask is not None:
            scores = scores.masked_fill(padding_mask.unsqueeze(-1), no_weight())
        weights = scores.softmax(dim=1).unflatten(-1, (self.num_heads, self.slots_per_head)).permute(0, 2, 3, 1)
        slots = (
            self.normalise_slots(weighted_sum(weights, key)),
            self.normalise_slots(weighted_sum(weights, value)),
        )
        output = windowed_attention(
            query,
            key,
            value,
            self.window,
            slots=slots,
            key_padding_mask=padding_mask,
            dropout=self.weight_dropout,
        )
        if self.conv is not None:
            real = value if padding_mask is None else value.masked_fill(padding_mask[:, None, :, None], 0.0)
            output = output + depthwise_conv(real, self.conv.weight)
        return self.out_proj(self.merge_heads(output))

    def attend_chunks(self, x: Tensor) -> Tensor:
        """The CS form, [B, N, D] to [B, N, D]; padding is on the right, where no real token looks."""
        finished = (x.shape[1] - 1) // self.chunks.size
        key, value, scores = self.k_proj(x), self.v_proj(x), self.score(x)
        slot_key, slot_value = (self.compress(y, scores, finished) for y in (key, value))
        output = self.read(self.q_proj(x), key, value, slot_key, slot_value, self.chunks)
        return self.out_proj(self.merge_heads(output))

    def read(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        slot_key: Tensor,
        slot_value: Tensor,
        chunks: Chunks,
        key_padding_mask: Tensor | None = None,
        slot_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Projections [B, N, D], not yet normed, and slots [B, H, S, E] to heads [B, H, N, E]."""
        distances = max(chunks.window, chunks.size)
        return causal_longshort(
            self.split_heads(query) * self.scale,
            self.split_heads(self.token_norm(key)),
            self.split_heads(self.token_norm(value)),
            chunks,
            slot_key=slot_key,
            slot_value=slot_value,
            key_position=self.embed_distances(self.key_position, distances),
            slot_position=self.embed_distances(self.slot_position, slot_key.shape[2]),
            content_bias=self.content_bias,
            position_bias=self.position_bias,
            key_padding_mask=key_padding_mask,
            slot_padding_mask=slot_padding_mask,
            dropout=self.weight_dropout,
        )

    def compress(self, x: Tensor, scores: Tensor, num_chunks: int) -> Tensor:
        """Slots of the first chunks of ``x`` [B, N, D], scored [B, N, H r]: [B, H, num_chunks r, E]."""
        length = num_chunks * self.chunks.size
        weights = wide(scores[:, :length]).unflatten(1, (num_chunks, self.chunks.size)).softmax(dim=2)
        weights = weights.unflatten(-1, (self.num_heads, self.chunks.rank)).permute(0, 3, 1, 4, 2)
        chunks = self.split_heads(x[:, :length]).unflatten(2, (num_chunks, self.chunks.size))
        return self.normalise_slots(weighted_sum(weights, chunks).flatten(2, 3))

    def normalise_slots(self, slots: Tensor) -> Tensor:
        """Layer norm over all heads of a slot, [B, H, S, E] to the same."""
        return self.split_heads(self.slot_norm(self.merge_heads(slots)))

    def embed_distances(self, projection: nn.Linear, count: int) -> Tensor:
        """Sinusoids of the distances count - 1 to 0, projected: [H, count, E]."""
        weight = projection.weight
        rate = 10000.0 ** (-torch.arange(0, self.embed_dim, 2, device=weight.device) / self.embed_dim)
        angle = torch.arange(count - 1, -1, -1, device=weight.device).unsqueeze(1) * rate
        sinusoid = torch.cat([angle.sin(), angle.cos()], dim=-1)[:, : self.embed_dim]
        return self.split_heads(projection(sinusoid.to(weight.dtype).unsqueeze(0))).squeeze(0)

    # --- the readable form ------------------------------------------------------------------------------

    def reference_rows(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Each row by itself, without its padding, one query at a time."""
        output = torch.zeros_like(x)
        for row in range(x.shape[0]):
            length = x.shape[1] if padding_mask is None else int((~padding_mask[row]).sum())
            if length:
                tokens = x[row, :length]
                form = self.reference_chunks if self.pattern is Pattern.CS else self.reference_segments
                output[row, :length] = self.out_proj(form(tokens).flatten(1))
        return output

    def reference_segments(self, x: Tensor) -> Tensor:
        """NS, one row: [N, D] to heads [N, H, E]."""
        heads = (self.num_heads, self.head_dim)
        query = self.q_proj(x).unflatten(1, heads)
        key, value = (self.token_norm(project(x)) for project in (self.k_proj, self.v_proj))
        position_weights = self.score(x).softmax(dim=0).unflatten(1, (self.num_heads, -1))
        slots = [
            self.slot_norm(torch.einsum("nhr,nhe->rhe", position_weights, y.unflatten(1, heads)).flatten(1))
            for y in (key, value)
        ]
        segment, outputs = self.window.segment, []
        for i in range(x.shape[0]):
            start = i // segment * segment
            window = slice(max(0, start - segment // 2), start + segment + segment // 2)
            keys, values = (
                torch.cat([y[window], slot]).unflatten(1, heads) for y, slot in ((key, slots[0]), (value, slots[1]))
            )
            weights = (torch.einsum("he,mhe->hm", query[i], keys) * self.scale).softmax(dim=-1)
            outputs.append(torch.einsum("hm,mhe->he", F.dropout(weights, self.weight_dropout), values))
        output = torch.stack(outputs)
        if self.conv is not None:
            output = output + self.conv(value.unflatten(1, heads).transpose(0, 1).unsqueeze(0))[0].transpose(0, 1)
        return output

    def reference_chunks(self, x: Tensor) -> Tensor:
        """CS, one row: [N, D] to heads [N, H, E]."""
        heads = (self.num_heads, self.head_dim)
        window, size, rank = self.chunks[:3]
        query = self.q_proj(x).unflatten(1, heads) * self.scale
        raw = [project(x) for project in (self.k_proj, self.v_proj)]
        key, value = (self.token_norm(y).unflatten(1, heads) for y in raw)
        key_position = self.embed_distances(self.key_position, max(window, size)).flip(1)
        slots: list[list[Tensor]] = [[], []]
        outputs = []
        for i in range(x.shape[0]):
            chunk = i // size * size
            if i == chunk and i > 0:
                done = slice(chunk - size, chunk)
                weights = self.score(x[done]).softmax(dim=0).unflatten(1, (self.num_heads, -1))
                for y, kept in zip(raw, slots, strict=True):
                    mean = torch.einsum("nhr,nhe->rhe", weights, y[done].unflatten(1, heads))
                    kept.extend(self.slot_norm(mean.flatten(1)).unflatten(1, heads))
            seen = torch.arange(max(0, min(i - window + 1, chunk)), i + 1)
            logits = torch.einsum("he,mhe->hm", query[i] + self.content_bias, key[seen])
            logits = logits + torch.einsum("he,hme->hm", query[i] + self.position_bias, key_position[:, i - seen])
            values = value[seen]
            if slots[0]:
                slot_position = self.embed_distances(self.slot_position, chunk // size * rank).transpose(0, 1)
                slot_logits = torch.einsum("he,she->hs", query[i], torch.stack(slots[0]) + slot_position)
                logits, values = torch.cat([logits, slot_logits], dim=1), torch.cat([values, torch.stack(slots[1])])
            weights = F.dropout(logits.softmax(dim=-1), self.weight_dropout)
            outputs.append(torch.einsum("hm,mhe->he", weights, values))
        return torch.stack(outputs)

    # --- decoding ---------------------------------------------------------------------------------------

    def init_state(
        self,
        batch_size: int,
        *,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> State:
        """Projections of the tokens that can still be needed, slots of the finished chunks, tokens read."""
        check_decoding(self.pattern, batch_size, key, value, key_padding_mask, self.embed_dim)
        like = self.k_proj.weight.new_empty(0, device=device, dtype=dtype)
        past = max(self.chunks.window, self.chunks.size) - 1
        slots = like.new_zeros(batch_size, self.num_heads, 0, self.head_dim)
        return {
            "key": like.new_zeros(batch_size, past, self.embed_dim),
            "value": like.new_zeros(batch_size, past, self.embed_dim),
            "score": like.new_zeros(batch_size, past, self.num_heads * self.chunks.rank),
            "slot_key": slots,
            "slot_value": slots,
            "length": torch.zeros(batch_size, dtype=torch.long, device=like.device),
        }

    def state_bytes(self, num_tokens: int) -> int:
        state = self.init_state(1)
        slots = num_tokens // self.chunks.size * self.chunks.rank * self.embed_dim
        return sum(tensor.nbytes for tensor in state.values()) + 2 * slots * state["key"].itemsize

    def prefill(self, query: Tensor, state: State, *, query_padding_mask: Tensor | None = None) -> tuple[Tensor, State]:
        check_tokens(query, query_padding_mask, self.embed_dim)
        tokens, mask, order = compact_rows(without_padding(query, query_padding_mask), query_padding_mask)
        num_tokens, size = tokens.shape[1], self.chunks.size
        read = state["length"]
        count = torch.full_like(read, num_tokens) if mask is None else (~mask).sum(dim=1)
        source = {
            name: torch.cat([state[name], project(tokens)], dim=1)
            for name, project in (("key", self.k_proj), ("value", self.v_proj), ("score", self.score))
        }
        begin, laid, hidden = self._lay_out(source, read, count, num_tokens)
        num_slots = state["slot_key"].shape[2]
        slots = {}
        for name in ("key", "value"):
            new = self.compress(laid[name][:, begin:], laid["score"][:, begin:], (size - 1 + num_tokens) // size)
            slots[f"slot_{name}"] = torch.cat([state[f"slot_{name}"].to(new.dtype), new], dim=2)
        is_open = (read % size).unsqueeze(1)
        asked = torch.arange(size - 1 + num_tokens, device=tokens.device) - is_open
        slot = torch.arange(slots["slot_key"].shape[2], device=tokens.device)
        output = self.read(
            take_rows(self.q_proj(tokens), asked.clamp(0, num_tokens - 1)),
            laid["key"],
            laid["value"],
            **slots,
            chunks=self.chunks._replace(offset=begin, slots=num_slots),
            key_padding_mask=hidden,
            slot_padding_mask=slot < num_slots - self._num_slots(read).unsqueeze(1),
        )
        output = take_rows(self.merge_heads(output), is_open + torch.arange(num_tokens, device=tokens.device))
        output = without_padding(self.out_proj(output), mask)
        state = self._keep(source, slots, num_slots, read, count)
        return (output if order is None else take_rows(output, order.argsort(dim=1))), state

    def _num_slots(self, length: Tensor) -> Tensor:
        """Slots of the chunks that ``length`` tokens finish."""
        return length // self.chunks.size * self.chunks.rank

    def _lay_out(
        self, source: dict[str, Tensor], read: Tensor, count: Tensor, num_tokens: int
    ) -> tuple[int, dict[str, Tensor], Tensor]:
        """Past and new tokens of each row, moved so that every row's open chunk begins at the same place.

        Returns that place, the tokens, and which of them are none, [B, M].
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
    ) -> State:
        """The state after ``count`` more tokens.

        Slots stand at the right end, so that the last one is equally far from every row's open chunk.
        """
        tokens = count.unsqueeze(1) + torch.arange(max(self.chunks.window, self.chunks.size) - 1, device=read.device)
        state = {name: take_rows(x, tokens) for name, x in source.items()}
        width = int(self._num_slots(read + count).max())
        end = num_slots + self._num_slots(read % self.chunks.size + count)
        index = (end.unsqueeze(1) + torch.arange(-width, 0, device=read.device)).clamp(min=0)
        for name, x in slots.items():
            state[name] = x.gather(2, index[:, None, :, None].expand(-1, self.num_heads, -1, self.head_dim))
        return state | {"length": read + count}


def weighted_sum(weights: Tensor, x: Tensor) -> Tensor:
    """``weights x``, summed in the precision of ``weights`` whatever autocast says, in the type of ``x``."""
    with torch.autocast(x.device.type, enabled=False):
        return (weights @ x.to(weights.dtype)).to(x.dtype)
