"""The Transformer layer: attention slots and a feed-forward map, each a residual branch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from backbones.layers.norms import make_norm
from cab import Attention, Depth, Pattern, UserError
from cab.attention import State
from cab.backbone import SlotFiller

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "swish": F.silu,
    "identity": lambda x: x,
}
FEED_FORWARDS = ("plain", "glu")


def stack(count: int, layer: Callable[..., nn.Module]) -> nn.ModuleList:
    """``count`` layers, each told its depth."""
    return nn.ModuleList(layer(depth=Depth(index, count)) for index in range(count))


class Residual(nn.Module):
    """Where a branch's norm stands: before it (``pre``), or after its sum with the input (``post``).

    ``y = branch(residual.enter(x)); x = residual.leave(x, y)``
    """

    def __init__(self, embed_dim: int, *, norm: str, dropout: float, norm_kind: str = "layer") -> None:
        super().__init__()
        if norm not in ("pre", "post"):
            raise UserError(f"norm must be 'pre' or 'post', got '{norm}'")
        self.is_pre = norm == "pre"
        self.norm = make_norm(norm_kind, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def enter(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.is_pre else x

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        x = x + self.dropout(y)
        return x if self.is_pre else self.norm(x)


class FeedForward(nn.Module):
    """Two maps, position by position, with an activation and its dropout between them.

    ``kind`` glu has a third map: W_3 (activation(W_1 x) * W_2 x)  (Shazeer 2020). Xavier uniform with biases of zero,
    or as torch's linear maps start (``is_xavier=False``).
    """

    def __init__(
        self,
        embed_dim: int,
        ffn_dim: int,
        *,
        activation: str,
        kind: str = "plain",
        dropout: float = 0.0,
        is_xavier: bool = True,
    ) -> None:
        super().__init__()
        if kind not in FEED_FORWARDS:
            raise UserError(f"unknown feed_forward '{kind}': choose one of {', '.join(FEED_FORWARDS)}")
        if activation not in ACTIVATIONS:
            raise UserError(f"unknown activation '{activation}': choose one of {', '.join(ACTIVATIONS)}")
        self.expand = nn.Linear(embed_dim, ffn_dim)
        self.reduce = nn.Linear(ffn_dim, embed_dim)
        self.gate = nn.Linear(embed_dim, ffn_dim) if kind == "glu" else None
        self.activation = ACTIVATIONS[activation]
        self.dropout = nn.Dropout(dropout)
        for linear in (x for x in (self.expand, self.reduce, self.gate) if x is not None and is_xavier):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.reduce(self.dropout(self.activation(self.expand(x))))
        return self.reduce(self.dropout(self.activation(self.gate(x))) * self.expand(x))


class TransformerLayer(nn.Module):
    """Self attention, cross attention where ``cross`` names its pattern, feed-forward.

    Args:
        slots: fills the attention slots.
        pattern: NS or CS, of the self attention.
        cross: NC or CC, of the cross attention; none when not given.
        norm: ``pre`` or ``post``.
        norm_kind, feed_forward: which norm (:mod:`backbones.layers.norms`) and feed-forward map.
        dropout: of each branch's output.
        attention_dropout: of the attention weights.
        activation_dropout: inside the feed-forward map.
        is_xavier: of the feed-forward map.
        depth: the place of the layer in its stack.
    """

    def __init__(
        self,
        slots: SlotFiller,
        pattern: Pattern,
        *,
        cross: Pattern | None = None,
        embed_dim: int,
        num_heads: int,
        ffn_dim: int,
        norm: str,
        activation: str,
        dropout: float,
        attention_dropout: float,
        activation_dropout: float = 0.0,
        is_xavier: bool = True,
        norm_kind: str = "layer",
        feed_forward: str = "plain",
        depth: Depth,
    ) -> None:
        super().__init__()
        residual = partial(Residual, embed_dim, norm=norm, norm_kind=norm_kind, dropout=dropout)
        attention = partial(slots, embed_dim=embed_dim, num_heads=num_heads, dropout=attention_dropout, depth=depth)
        self.self_attention = attention(pattern)
        self.self_residual = residual()
        self.cross_attention: Attention | None = None
        if cross is not None:
            self.cross_attention = attention(cross)
            self.cross_residual = residual()
        self.feed_forward = FeedForward(
            embed_dim,
            ffn_dim,
            activation=activation,
            kind=feed_forward,
            dropout=activation_dropout,
            is_xavier=is_xavier,
        )
        self.feed_forward_residual = residual()

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """[B, N, D] to [B, N, D]; ``memory`` [B, M, D] is what the cross attention reads."""
        y = self.self_attention(self.self_residual.enter(x), query_padding_mask=padding_mask)
        x = self.self_residual.leave(x, y)
        if self.cross_attention is not None:
            y = self.cross_attention(
                self.cross_residual.enter(x),
                memory,
                memory,
                query_padding_mask=padding_mask,
                key_padding_mask=memory_padding_mask,
            )
            x = self.cross_residual.leave(x, y)
        return self.feed_forward_residual.leave(x, self.feed_forward(self.feed_forward_residual.enter(x)))

    def init_state(
        self,
        batch_size: int,
        like: Tensor,
        memory: Tensor | None = None,
        memory_padding_mask: Tensor | None = None,
    ) -> dict[str, State]:
        """The states of the slots before the first token; ``like`` has the device and type of the tokens' vectors."""
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
        self, x: Tensor, states: Mapping[str, State], padding_mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, State]]:
        """:meth:`forward` of the next tokens [B, T, D], and the states after them."""
        y, after = _read(self.self_attention, self.self_residual.enter(x), states["self"], padding_mask)
        x = self.self_residual.leave(x, y)
        new = {"self": after}
        if self.cross_attention is not None:
            y, after = _read(self.cross_attention, self.cross_residual.enter(x), states["cross"], padding_mask)
            x = self.cross_residual.leave(x, y)
            new["cross"] = after
        return self.feed_forward_residual.leave(x, self.feed_forward(self.feed_forward_residual.enter(x))), new


def _read(attention: Attention, x: Tensor, state: State, padding_mask: Tensor | None) -> tuple[Tensor, State]:
    read = attention.step if x.shape[1] == 1 else attention.prefill
    return read(x, state, query_padding_mask=padding_mask)
