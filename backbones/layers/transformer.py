"""Transformer layers: attention and feed-forward layers as residual branches; and stacks of layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from backbones.layers.tokens import NormKind, make_norm
from cab import Attention, LayerPosition, Pattern
from cab.attention import DecodeState
from cab.backbone import AttentionFactory

FFN_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "swish": F.silu,
    "identity": lambda x: x,
}
Activation = Literal["relu", "gelu", "gelu_tanh", "swish", "identity"]
FeedForwardKind = Literal["plain", "glu", "glu_without_bias", "none"]
ResidualKind = Literal["plain", "gtrxl"]

States = tuple[Mapping[str, DecodeState], ...]
"""Per layer of a stack, the states of its attention layers."""
RunLayer = Callable[..., Any]
"""Calls its first argument with the others: :meth:`cab.backbone.Backbone.run_layer`."""


class Residual(nn.Module):
    """Residual connection with the norm before the branch (``pre``) or after the sum (``post``).

    ``y = branch(residual.enter(x)); x = residual.leave(x, y)``

    ``kind`` gtrxl replaces the sum by a gate after a ReLU on the branch (Parisotto et al. 2020: with pre-norm, two
    linear layers would follow each other); ``gate_bias`` is the initial gate bias.
    """

    def __init__(
        self,
        embed_dim: int,
        *,
        norm: Literal["pre", "post"],
        dropout: float,
        norm_kind: NormKind = "layer",
        kind: ResidualKind = "plain",
        gate_bias: float = 2.0,
    ) -> None:
        super().__init__()
        assert norm == "pre" or kind == "plain"
        self.is_pre = norm == "pre"
        self.gate: nn.Module | None = None
        if kind == "gtrxl":
            self.gate = GRUGate(embed_dim, gate_bias)
        self.norm = make_norm(norm_kind, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def enter(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.is_pre else x

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        if self.gate is not None:
            return self.gate(x, F.relu(self.dropout(y)))
        x = x + self.dropout(y)
        return x if self.is_pre else self.norm(x)


class FeedForward(nn.Module):
    """Two position-wise linear layers with an activation and dropout between them.

    ``kind`` glu has a third: W_3 (activation(W_1 x) * W_2 x) (Shazeer 2020); glu_without_bias has it, and no biases.
    Initialized Xavier uniform with zero biases, or with PyTorch's default (``is_xavier=False``).
    """

    def __init__(
        self,
        embed_dim: int,
        ffn_dim: int,
        *,
        activation: Activation,
        kind: FeedForwardKind = "plain",
        dropout: float = 0.0,
        is_xavier: bool = True,
    ) -> None:
        super().__init__()
        bias = kind != "glu_without_bias"
        self.expand = nn.Linear(embed_dim, ffn_dim, bias=bias)
        self.reduce = nn.Linear(ffn_dim, embed_dim, bias=bias)
        self.gate = None if kind == "plain" else nn.Linear(embed_dim, ffn_dim, bias=bias)
        self.activation = FFN_ACTIVATIONS[activation]
        self.dropout = nn.Dropout(dropout)
        for linear in (x for x in (self.expand, self.reduce, self.gate) if x is not None and is_xavier):
            nn.init.xavier_uniform_(linear.weight)
            if bias:
                nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.reduce(self.dropout(self.activation(self.expand(x))))
        return self.reduce(self.dropout(self.activation(self.gate(x))) * self.expand(x))


class TransformerLayer(nn.Module):
    """Self attention, cross attention if ``cross`` is given, and feed-forward layer, unless its kind is ``none``.

    Args:
        pattern, cross: patterns of the self attention and of the cross attention.
        norm_kind, residual, gate_bias: as in :class:`Residual`.
        dropout, attention_dropout, activation_dropout: applied to each branch's output, to attention weights, and
            inside the feed-forward layer.
        feed_forward, is_xavier: kind and initialization of the :class:`FeedForward`.
    """

    def __init__(
        self,
        make_attention: AttentionFactory,
        pattern: Pattern,
        *,
        cross: Pattern | None = None,
        embed_dim: int,
        num_heads: int,
        ffn_dim: int,
        norm: Literal["pre", "post"],
        activation: Activation,
        dropout: float,
        attention_dropout: float,
        activation_dropout: float = 0.0,
        is_xavier: bool = True,
        norm_kind: NormKind = "layer",
        feed_forward: FeedForwardKind = "plain",
        residual: ResidualKind = "plain",
        gate_bias: float = 2.0,
        layer_position: LayerPosition,
    ) -> None:
        super().__init__()
        join = partial(
            Residual, embed_dim, norm=norm, norm_kind=norm_kind, dropout=dropout, kind=residual, gate_bias=gate_bias
        )
        attention = partial(
            make_attention,
            embed_dim=embed_dim,
            num_heads=num_heads,
            dropout=attention_dropout,
            layer_position=layer_position,
        )
        self.self_attention = attention(pattern)
        self.self_residual = join()
        self.cross_attention: Attention | None = None
        if cross is not None:
            self.cross_attention = attention(cross)
            self.cross_residual = join()
        self.feed_forward: FeedForward | None = None
        if feed_forward != "none":
            options: dict[str, Any] = {"kind": feed_forward, "dropout": activation_dropout, "is_xavier": is_xavier}
            self.feed_forward = FeedForward(embed_dim, ffn_dim, activation=activation, **options)
            self.feed_forward_residual = join()

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_padding_mask: Tensor | None = None,
        mems: Tensor | None = None,
    ) -> Tensor:
        """Map [B, N, D] to [B, N, D]; the cross attention reads ``memory`` [B, M, D].

        ``mems`` [B, P, D] are stored inputs of the layer, which the self attention also reads; ``padding_mask`` then
        covers both, [B, P + N].
        """
        inputs = self.self_residual.enter(x if mems is None else torch.cat([mems, x], dim=1))
        y = self.self_attention(inputs, query_padding_mask=padding_mask)
        x = self.self_residual.leave(x, y if mems is None else y[:, mems.shape[1] :])
        if self.cross_attention is not None:
            y = self.cross_attention(
                self.cross_residual.enter(x),
                memory,
                memory,
                query_padding_mask=padding_mask,
                key_padding_mask=memory_padding_mask,
            )
            x = self.cross_residual.leave(x, y)
        return self.feed(x)

    def feed(self, x: Tensor) -> Tensor:
        """Apply the residual branch of the feed-forward layer, if there is one."""
        if self.feed_forward is None:
            return x
        return self.feed_forward_residual.leave(x, self.feed_forward(self.feed_forward_residual.enter(x)))

    def init_state(
        self,
        batch_size: int,
        like: Tensor,
        memory: Tensor | None = None,
        memory_padding_mask: Tensor | None = None,
    ) -> dict[str, DecodeState]:
        """Return the attention states before the first token; ``like`` has the device and dtype of the inputs."""
        states = {"self": self.self_attention.init_state(batch_size, device=like.device, dtype=like.dtype)}
        if self.cross_attention is not None:
            states["cross"] = self.cross_attention.init_state(
                batch_size,
                key=memory,
                value=memory,
                key_padding_mask=memory_padding_mask,
                device=like.device,
                dtype=like.dtype,
            )
        return states

    def read(
        self, x: Tensor, states: Mapping[str, DecodeState], padding_mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, DecodeState]]:
        """Apply the layer to the next tokens [B, T, D]; return the outputs and the new states."""
        y, after = read_attention(self.self_attention, self.self_residual.enter(x), states["self"], padding_mask)
        x = self.self_residual.leave(x, y)
        new = {"self": after}
        if self.cross_attention is not None:
            y, after = read_attention(self.cross_attention, self.cross_residual.enter(x), states["cross"], padding_mask)
            x = self.cross_residual.leave(x, y)
            new["cross"] = after
        return self.feed(x), new


def read_attention(
    attention: Attention, x: Tensor, state: DecodeState, padding_mask: Tensor | None
) -> tuple[Tensor, DecodeState]:
    """Apply self or cross attention to the next tokens [B, T, D]; return the outputs and the new state.

    A single token is read by ``step``, which an attention may override.
    """
    method = attention.step if x.shape[1] == 1 else attention.prefill
    return method(x, state, query_padding_mask=padding_mask)


class LayerStack(nn.ModuleList):
    """Layers applied one after the other."""

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        *inputs: Any,
        run_layer: RunLayer,
    ) -> Tensor:
        """Map [B, N, D] to [B, N, D].

        Args:
            x: inputs of the first layer.
            padding_mask: [B, N], True = padding.
            inputs: further inputs of every layer.
            run_layer: calls a layer with its inputs.
        """
        for layer in self:
            x = run_layer(layer, x, padding_mask, *inputs)
        return x

    def executions(self) -> list[TransformerLayer]:
        """Return the layers in the order of their execution; each execution has its own state."""
        return cast(list[TransformerLayer], list(self))

    def init_state(
        self, batch_size: int, like: Tensor, memory: Tensor | None = None, memory_padding_mask: Tensor | None = None
    ) -> States:
        """Return the states before the first token; see :meth:`TransformerLayer.init_state`."""
        return tuple(layer.init_state(batch_size, like, memory, memory_padding_mask) for layer in self.executions())

    def read(self, x: Tensor, states: States, padding_mask: Tensor | None) -> tuple[Tensor, States]:
        """Apply the layers to the next tokens [B, T, D]; return the outputs and the new states."""
        after = []
        for layer, state in zip(self.executions(), states, strict=True):
            x, state = layer.read(x, state, padding_mask)
            after.append(state)
        return x, tuple(after)


def stack(
    count: int, layer: Callable[..., nn.Module], kind: Callable[[list[nn.Module]], LayerStack] = LayerStack
) -> LayerStack:
    """Build ``count`` layers, each with its layer position, as a stack of a kind."""
    return kind([layer(layer_position=LayerPosition(index, count)) for index in range(count)])


class GRUGate(nn.Module):
    """Gate a branch's output into the residual stream, per feature (GTrXL, Parisotto et al. 2020).

    For stream x and branch y, D x D matrices W and U without bias, and a learned vector b:

        r = sigmoid(W_r y + U_r x)
        z = sigmoid(W_z y + U_z x - b)
        h = tanh(W_g y + U_g (r * x))
        (1 - z) * x + z * h

    Args:
        bias: initial value of b; the larger, the closer a layer starts to the identity.
    """

    def __init__(self, embed_dim: int, bias: float) -> None:
        super().__init__()
        self.from_branch = nn.Linear(embed_dim, 3 * embed_dim, bias=False)
        """W_r, W_z, W_g."""
        self.from_stream = nn.Linear(embed_dim, 2 * embed_dim, bias=False)
        """U_r, U_z."""
        self.candidate = nn.Linear(embed_dim, embed_dim, bias=False)
        """U_g."""
        self.bias = nn.Parameter(torch.full((embed_dim,), bias))
        for maps in (self.from_branch, self.from_stream, self.candidate):
            for square in maps.weight.split(embed_dim):
                nn.init.xavier_uniform_(square)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Combine stream and branch [..., D] into the new stream [..., D]."""
        branch_r, branch_z, branch_h = self.from_branch(y).chunk(3, dim=-1)
        stream_r, stream_z = self.from_stream(x).chunk(2, dim=-1)
        r, z = torch.sigmoid(branch_r + stream_r), torch.sigmoid(branch_z + stream_z - self.bias)
        return torch.lerp(x, torch.tanh(branch_h + self.candidate(r * x)).to(x.dtype), z.to(x.dtype))
