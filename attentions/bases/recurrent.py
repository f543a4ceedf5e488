"""What recurrent methods share: a state that is written to and read token by token, computed block by block.

Shapes: B batch, H heads, N tokens, K and V widths of a head's keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.kernels import fla_kernels
from attentions.kernels.fla_kernels import Form
from attentions.kernels.precision import wide
from attentions.kernels.recurrence import recurrence
from attentions.kernels.short_conv import ShortConvolution
from attentions.kernels.spans import over_spans
from cab import Attention, Pattern, UserError
from cab.attention import DecodeState, PaddingMasks
from cab.padding import lengths

Extras = Mapping[str, Tensor]
"""What was computed from the layer's inputs, [B, N, ...] by name."""


CONVOLVED = ("query", "key", "value")
"""What short convolutions stand before, if there are any."""


class Terms(NamedTuple):
    """What the state takes of each token.

    query, key: [B, H or 1, N, K]; value [B, H, N, V].
    log_decay: [B or 1, H, N] of a head, [B, H, N, K] of each feature, or None for a state that forgets nothing.
    strength: [B, H, N] of a delta rule, or [B, H, N, K] of each feature.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    log_decay: Tensor | None = None
    strength: Tensor | None = None


class Recurrent(Attention):
    """S_t = exp(g_t) S_{t-1} + k_t (x) v_t, o_t = q_t S_t; then an RMS norm, and out_proj.

    A subclass says in ``terms`` what q, k, v and g are, from heads and from what it computes of the layer's inputs;
    where it has a gate or more, in ``finish`` what becomes of o. Sums are formed in float32 at least. A padded token
    writes nothing and forgets nothing. There are no weights to drop, so ``dropout`` is not used. Projections have the
    biases and the first values of this project's other attentions.

    The state of decoding is of constant size: S, H K V numbers, and with short convolutions the last tokens of q, k
    and v before them.

    Args:
        key_expansion, value_expansion: widths of keys and of values relative to the model's; those of a head are
            rounded.
        key_width: K itself, where it does not follow the model's.
        gate: a gate from the layer's input, as wide as the values.
        shares_keys: all heads have the same query and key.
        conv_size: taps of causal convolutions of q, k and v, one kernel for each feature; 0 for none.

    Raises:
        ValueError: for a ``conv_size`` of 1 or below 0, or an expansion that is not above 0.
    """

    requires_right_padding = True
    has_constant_size_state = True
    normalised_together = False
    """Whether the norm is over all heads at once."""
    forms: ClassVar[tuple[Form, Form]] = (recurrence, fla_kernels.recurrence)
    """What computes the recurrence of all tokens: ours, and flash-linear-attention's."""

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        key_expansion: float = 1.0,
        value_expansion: float = 1.0,
        key_width: int | None = None,
        gate: bool = False,
        shares_keys: bool = False,
        conv_size: int = 0,
    ) -> None:
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        check_positive(key_expansion=key_expansion, value_expansion=value_expansion)
        if conv_size < 0 or conv_size == 1:
            raise UserError(f"conv_size must be 0 for no convolution, or at least 2, got {conv_size}")
        self.key_width = max(1, round(key_expansion * self.head_dim)) if key_width is None else key_width
        self.value_width = max(1, round(value_expansion * self.head_dim))
        self.key_heads = 1 if shares_keys else num_heads
        self.conv_size = conv_size
        keys, values = self.key_heads * self.key_width, num_heads * self.value_width
        self.q_proj = xavier_linear(embed_dim, keys, gain=2**-0.5)
        self.k_proj = xavier_linear(embed_dim, keys, gain=2**-0.5)
        self.v_proj = xavier_linear(embed_dim, values, gain=2**-0.5)
        self.out_proj = xavier_linear(values, embed_dim)
        if gate:
            self.gate_proj = xavier_linear(embed_dim, values, bias=False)
        self.norm_weight = nn.Parameter(torch.ones(values if self.normalised_together else self.value_width))
        shapes = [(self.key_heads, self.key_width)] * 2 + [(num_heads, self.value_width)]
        convolutions = [ShortConvolution(*shape, conv_size) for shape in shapes if conv_size]
        self.convolutions = nn.ModuleDict(dict(zip(CONVOLVED, convolutions, strict=False)))

    def make_projections(self) -> None:
        """Made when the widths are known."""

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, N, D] each to [B, H or 1, N, K], twice, and [B, H, N, V]."""
        queries, keys = (
            x.unflatten(-1, (self.key_heads, -1)).transpose(1, 2) for x in (self.q_proj(query), self.k_proj(key))
        )
        return queries, keys, self.split_heads(self.v_proj(value))

    def query_side_inputs(self, query: Tensor) -> dict[str, Tensor]:
        return {"gate": self.gate_proj(query)} if hasattr(self, "gate_proj") else {}

    # --- what a subclass says ----------------------------------------------------------------------------

    def terms(self, query: Tensor, key: Tensor, value: Tensor, extras: Extras, position: Tensor) -> Terms:
        """From heads after their convolutions; ``position`` [B or 1, N] counts from 0."""
        raise NotImplementedError

    def finish(self, output: Tensor, _value: Tensor, extras: Extras) -> Tensor:
        """Of o [B, H, N, V] and the value that ``terms`` was given: the norm, and silu of a gate times it."""
        output = self.normalise(output)
        return output * F.silu(self.split_heads(extras["gate"])) if "gate" in extras else output

    def normalise(self, x: Tensor) -> Tensor:
        """x / sqrt(mean x^2 + 1e-5) times a weight, over a head or over all of them."""
        weight = self.norm_weight.to(x.dtype)
        if self.normalised_together:
            weight = weight.view(self.num_heads, 1, self.value_width)
        dims = [1, 3] if self.normalised_together else [3]
        return x * (x.square().mean(dims, keepdim=True) + 1e-5).rsqrt() * weight

    # --- block by block ----------------------------------------------------------------------------------

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks, **extras: Tensor) -> Tensor:
        return self.decode(query, key, value, self.init_decode_state(len(query), query), padding, **extras)[0]

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Nothing written yet: ``memory`` S [B, H, K, V], ``length`` [B] tokens read, and those of convolutions."""
        memory = wide(like.new_zeros(batch_size, self.num_heads, self.memory_width, self.value_width))
        length = torch.zeros(batch_size, dtype=torch.long, device=like.device)
        state = {"memory": memory, "length": length}
        for name, convolution in self.convolutions.items():
            assert isinstance(convolution, ShortConvolution)
            state[name] = wide(convolution.init_decode_state(batch_size, like))
        return state

    @property
    def memory_width(self) -> int:
        """Rows of S: what ``terms`` makes of the width of a key."""
        return self.key_width

    def decode(
        self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks, **extras: Tensor
    ) -> tuple[Tensor, DecodeState]:
        with torch.autocast(query.device.type, enabled=False):
            extras = {name: wide(x) for name, x in extras.items()}
            output, state = over_spans(self.span, [query, key, value], padding.key, state, extras)
            return output.to(query.dtype), state

    def span(
        self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, state: DecodeState, extras: Extras
    ) -> tuple[Tensor, DecodeState]:
        """The same for tokens all of whose terms are in memory at once."""
        given, after = query.dtype, {}
        heads = {"query": wide(query), "key": wide(key), "value": wide(value)}
        for name, convolve in self.convolutions.items():
            heads[name], after[name] = convolve(heads[name], state[name], padding)
        query, key, value = heads.values()
        position = state["length"].unsqueeze(1) + torch.arange(query.shape[2], device=query.device)
        terms = self.hidden(self.terms(query, key, value, extras, position), padding)
        ours, theirs = self.forms
        form = theirs if fla_kernels.are_taken(terms.value, state["memory"], given) else ours
        output, memory = self.update(terms, state["memory"], form)
        length = state["length"] + lengths(query, padding)
        return self.finish(output, value, extras), {"memory": memory, "length": length, **after}

    def update(self, terms: Terms, memory: Tensor, form: Form) -> tuple[Tensor, Tensor]:
        """o of all tokens and S after the last, by one of ``forms``."""
        return form(terms.query, terms.key, terms.value, terms.log_decay, memory)

    def hidden(self, terms: Terms, padding: Tensor | None) -> Terms:
        """Padded tokens [B, N] have no key and no decay."""
        if padding is None:
            return terms
        decay, hidden = terms.log_decay, padding[:, None]
        if decay is not None:
            decay = decay.masked_fill(hidden if decay.dim() == 3 else hidden.unsqueeze(-1), 0.0)
        return terms._replace(key=terms.key.masked_fill(hidden.unsqueeze(-1), 0.0), log_decay=decay)

    # --- token by token ----------------------------------------------------------------------------------

    def reference(self, query: Tensor, key: Tensor, value: Tensor, **extras: Tensor) -> Tensor:
        heads = {"query": query, "key": key, "value": value}
        for name, convolution in self.convolutions.items():
            taps = convolution.get_parameter("weight").permute(1, 3, 2, 0).flatten(0, 1)  # [H K, 1, W]
            flat = F.pad(heads[name].mT.flatten(0, 1), (self.conv_size - 1, 0))
            heads[name] = F.conv1d(flat[None], taps, groups=len(taps))[0].unflatten(0, heads[name].shape[::2]).mT
        query, key, value = (x[None] for x in heads.values())
        extras = {name: x[None] for name, x in extras.items()}
        terms = self.terms(query, key, value, extras, torch.arange(query.shape[2], device=query.device)[None])
        memory = value.new_zeros(1, self.num_heads, terms.key.shape[-1], self.value_width)
        outputs = []
        for t in range(query.shape[2]):
            now = Terms._make(None if x is None else x[:, :, t] for x in terms)
            memory = self.write(now, memory)
            outputs.append(torch.einsum("bhk,bhkv->bhv", now.query.expand(memory.shape[:3]), memory))
        return self.finish(torch.stack(outputs, dim=2), value, extras)[0]

    def write(self, now: Terms, memory: Tensor) -> Tensor:
        """S_t from S_{t-1} [B, H, K, V] and the terms of one token, without their dimension of tokens."""
        if now.log_decay is not None:
            decay = now.log_decay.exp()
            memory = memory * (decay[..., None, None] if decay.dim() == 2 else decay.unsqueeze(-1))
        return memory + now.key.unsqueeze(-1) * now.value.unsqueeze(-2)


def xavier_linear(inputs: int, outputs: int, *, gain: float = 1.0, bias: bool = True) -> nn.Linear:
    """A map with Xavier's first values, as CAB's projections have them."""
    linear = nn.Linear(inputs, outputs, bias=bias)
    nn.init.xavier_uniform_(linear.weight, gain=gain)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear


def check_positive(**options: float) -> None:
    """UserError for an option that is not above zero."""
    for name, option in options.items():
        if option <= 0:
            raise UserError(f"{name} must be above 0, got {option}")
