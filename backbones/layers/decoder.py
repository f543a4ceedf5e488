"""The base classes of backbones that decode step by step, and the state they decode with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from backbones.layers.tokens import TokenEmbedding, check_tokens, number_positions
from backbones.layers.transformer import LayerStack, Positions
from cab import Backbone, UserError
from cab.attention import DecodeState, reorder_state


@dataclass(frozen=True)
class DecodingState:
    """What a decoder has read.

    Attributes:
        layers: for each layer, the state of its ``self`` slot and of its ``cross`` slot where it has one.
        lengths: [B], real tokens of each row.
        num_read: tokens read, padding included.
    """

    layers: tuple[Mapping[str, DecodeState], ...]
    lengths: Tensor
    num_read: int

    def select(self, index: Tensor, *, shared: DecodingState | None = None) -> DecodingState:
        """The state of rows ``index`` [B']: any row may be dropped or repeated.

        Args:
            shared: a state whose rows are the same before and after the selection, as those of one sentence's
                beams are before the first token. Tensors that decoding has left as they were in it, the projected
                source above all, are not copied.
        """
        layers = tuple(
            {
                slot: _select(state, index, None if shared is None else shared.layers[number][slot])
                for slot, state in layer.items()
            }
            for number, layer in enumerate(self.layers)
        )
        return DecodingState(layers, self.lengths.index_select(0, index), self.num_read)


def _select(state: DecodeState, index: Tensor, shared: DecodeState | None) -> DecodeState:
    if shared is None:
        return reorder_state(state, index)
    unchanged = {name: tensor for name, tensor in state.items() if tensor is shared.get(name)}
    return reorder_state({k: v for k, v in state.items() if k not in unchanged}, index) | unchanged


class Decoder(Backbone):
    """A backbone with a stack of ``decoder_layers`` that read one step, or several, onto a state."""

    decoder_layers: nn.ModuleList

    def __init__(self) -> None:
        super().__init__()
        self.layer_stack = LayerStack()

    def start_layers(
        self, batch_size: int, like: Tensor, memory: Tensor | None = None, memory_padding_mask: Tensor | None = None
    ) -> DecodingState:
        """The state before the first step; what the cross attentions make of ``memory`` is made here, once.

        ``like`` has the device and type of the vectors that the layers read.
        """
        layers = self.layer_stack.sequence(self.decoder_layers)
        states = tuple(layer.init_state(batch_size, like, memory, memory_padding_mask) for layer in layers)
        return DecodingState(states, torch.zeros(batch_size, dtype=torch.long, device=like.device), 0)

    def read_layers(
        self, x: Tensor, state: DecodingState, padding_mask: Tensor | None = None, positions: Positions | None = None
    ) -> tuple[Tensor, DecodingState]:
        """The last layer's outputs of the next steps [B, T, D], and the state after them."""
        x, layers = self.layer_stack.read(self.decoder_layers, state.layers, x, padding_mask, positions)
        read = x.shape[1] if padding_mask is None else (~padding_mask).sum(dim=1)
        return x, DecodingState(layers, state.lengths + read, state.num_read + x.shape[1])


class TokenDecoder(Decoder):
    """A backbone whose decoder reads tokens, with a ``decoder_embedding`` beside the layers.

    :meth:`prefill` and :meth:`step` give the logits of the token that comes next, the same as the training
    forward pass on the same tokens.
    """

    decoder_embedding: TokenEmbedding

    def predict(self, x: Tensor) -> Tensor:
        """Logits [..., V] of the last layer's outputs [..., D]."""
        raise NotImplementedError

    def start_decoding(
        self, batch_size: int, memory: Tensor | None = None, memory_padding_mask: Tensor | None = None
    ) -> DecodingState:
        """The state before the first token; what the cross attentions make of ``memory`` is made here, once."""
        if batch_size < 1:
            raise UserError(f"batch_size must be at least 1, got {batch_size}")
        like = self.decoder_embedding.tokens.weight if memory is None else memory
        return self.start_layers(batch_size, like, memory, memory_padding_mask)

    def prefill(
        self, tokens: Tensor, state: DecodingState, *, padding_mask: Tensor | None = None
    ) -> tuple[Tensor, DecodingState]:
        """Read several tokens at once, such as a prompt.

        Args:
            tokens: [B, T].
            state: from :meth:`init_state`, or after earlier tokens.
            padding_mask: [B, T], True = padding, on either side; every row needs a token.

        Returns:
            Logits [B, V] of the token after each row's last, and the state.

        Raises:
            ValueError: tokens that do not fit, or more of them than there are learned positions.
        """
        check_tokens("tokens", tokens, padding_mask, vocab_size=self.decoder_embedding.vocab_size, max_length=None)
        self._check_room(tokens, state)
        index = state.lengths.unsqueeze(1) + number_positions(tokens, padding_mask)
        x, state = self._read(tokens, index, state, padding_mask)
        if padding_mask is None:
            return self.predict(x[:, -1]), state
        last = padding_mask.shape[1] - 1 - (~padding_mask).flip(1).to(torch.uint8).argmax(dim=1)
        return self.predict(x[torch.arange(len(x), device=x.device), last]), state

    def step(self, tokens: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """Read one token a row, [B]: logits [B, V] of the next one, and the state."""
        if tokens.dim() != 1 or tokens.shape != state.lengths.shape:
            raise UserError(
                f"step reads one token for each of the state's {len(state.lengths)} rows, got {tuple(tokens.shape)}"
            )
        tokens = tokens.unsqueeze(1)
        self._check_room(tokens, state)
        x, state = self._read(tokens, state.lengths.unsqueeze(1), state, None)
        return self.predict(x[:, -1]), state

    def _read(
        self, tokens: Tensor, index: Tensor, state: DecodingState, padding_mask: Tensor | None
    ) -> tuple[Tensor, DecodingState]:
        embedding = self.decoder_embedding
        x, state = self.read_layers(embedding(tokens, index), state, padding_mask, partial(embedding.positions, index))
        return self.finish(x), state

    def finish(self, x: Tensor) -> Tensor:
        """What follows the last layer."""
        return x

    def _check_room(self, tokens: Tensor, state: DecodingState) -> None:
        limit = self.max_target_length
        if limit is not None and state.num_read + tokens.shape[1] > limit:
            raise UserError(
                f"tokens {tuple(tokens.shape)} after {state.num_read} earlier ones are more than the {limit} learned "
                "positions: generate less, or build the backbone with more of them"
            )

    @property
    def max_target_length(self) -> int | None:
        """Tokens that the decoder has positions for; None where any number works."""
        return self.decoder_embedding.positions.max_length
