"""Stacks that join the outputs of attention and feed-forward layers in another way than by sums of each layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from backbones.layers.transformer import LayerStack, RunLayer, States, TransformerLayer, read_attention
from cab.attention import DecodeState

Branch = Callable[[Tensor], Tensor]


class BranchLayer(TransformerLayer):
    """Self attention and feed-forward layer; each call runs one of them, with pre-norm and dropout."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, *_: Any, branch: str = "attention") -> Tensor:
        """Return the output of ``branch`` [B, N, D] for its input; ``memory`` and ``mems`` are not supported."""
        if branch == "attention":
            y = self.self_attention(self.self_residual.enter(x), query_padding_mask=padding_mask)
            return self.self_residual.dropout(y)
        assert self.feed_forward is not None
        return self.feed_forward_residual.dropout(self.feed_forward(self.feed_forward_residual.enter(x)))

    def read(
        self, x: Tensor, states: Mapping[str, DecodeState], padding_mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, DecodeState]]:
        """Apply the attention to the next tokens [B, T, D]; return the output and the new state."""
        y, after = read_attention(self.self_attention, self.self_residual.enter(x), states["self"], padding_mask)
        return self.self_residual.dropout(y), {"self": after}


class BranchStack(LayerStack):
    """Stack of :class:`BranchLayer` whose branches are joined by :meth:`join`."""

    def join(self, branches: Sequence[Branch], x: Tensor) -> Tensor:
        """Return the output for embeddings ``x`` [B, N, D]; every branch is called once, in order."""
        raise NotImplementedError

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, *_: Any, run_layer: RunLayer) -> Tensor:
        branches: list[Branch] = []
        for layer in self:
            calls = (partial(layer, padding_mask=padding_mask), partial(layer, branch="feed_forward"))
            branches += [partial(run_layer, call) for call in calls]
        return self.join(branches, x)

    def read(self, x: Tensor, states: States, padding_mask: Tensor | None) -> tuple[Tensor, States]:
        after: list[Mapping[str, DecodeState]] = []

        def attend(layer: TransformerLayer, state: Mapping[str, DecodeState], x: Tensor) -> Tensor:
            y, new = layer.read(x, state, padding_mask)
            after.append(new)
            return y

        branches: list[Branch] = []
        for layer, state in zip(self.executions(), states, strict=True):
            branches += [partial(attend, layer, state), partial(layer, branch="feed_forward")]
        return self.join(branches, x), tuple(after)
