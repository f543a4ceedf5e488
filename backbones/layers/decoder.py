"""Base classes of step-by-step decoders, and their decoding state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from backbones.layers.tokens import TokenEmbedding, check_tokens, number_positions
from backbones.layers.transformer import LayerStack, States
from cab import Backbone, UserError
from cab.attention import reorder_state


@dataclass(frozen=True)
class DecodingState:
    """Decoding state of a backbone, made of the :data:`cab.attention.DecodeState` of each attention.

    Attributes:
        layers: per layer, the state of its ``self`` attention and, if it has one, of its ``cross`` attention.
        lengths: [B] number of real tokens per sequence.
        num_read: number of tokens read, including padding.
    """

    layers: States
    lengths: Tensor
    num_read: int

    def select(self, index: Tensor) -> DecodingState:
        """Select the sequences ``index`` [B'], which may drop or repeat any of them."""
        layers = tuple({slot: reorder_state(state, index) for slot, state in layer.items()} for layer in self.layers)
        return DecodingState(layers, self.lengths.index_select(0, index), self.num_read)

    def after(self, layers: States, num_tokens: int, padding_mask: Tensor | None) -> DecodingState:
        """Return the state with the new states of the layers, ``num_tokens`` tokens later."""
        num_real = num_tokens if padding_mask is None else (~padding_mask).sum(dim=1)
        return DecodingState(layers, self.lengths + num_real, self.num_read + num_tokens)


class Decoder(Backbone):
    """A backbone with a stack of ``decoder_layers`` that decodes step by step."""

    decoder_layers: LayerStack

    def start_layers(
        self, batch_size: int, like: Tensor, memory: Tensor | None = None, memory_padding_mask: Tensor | None = None
    ) -> DecodingState:
        """Return the state before the first step; the cross attentions encode ``memory`` here, once.

        ``like`` has the device and dtype of the layers' inputs.
        """
        states = self.decoder_layers.init_state(batch_size, like, memory, memory_padding_mask)
        return DecodingState(states, torch.zeros(batch_size, dtype=torch.long, device=like.device), 0)

    def read_layers(
        self, x: Tensor, state: DecodingState, padding_mask: Tensor | None = None
    ) -> tuple[Tensor, DecodingState]:
        """Return the last layer's outputs for the next steps [B, T, D], and the new state."""
        x, layers = self.decoder_layers.read(x, state.layers, padding_mask)
        return x, state.after(layers, x.shape[1], padding_mask)


class TokenDecoder(Decoder):
    """A decoder of tokens with a ``decoder_embedding``.

    :meth:`prefill` and :meth:`step` return the logits of the next token, equal to those of the training forward pass.
    """

    decoder_embedding: TokenEmbedding

    def predict(self, x: Tensor) -> Tensor:
        """Return the logits [..., V] for outputs of :meth:`finish` [..., D]."""
        raise NotImplementedError

    def start_decoding(
        self, batch_size: int, memory: Tensor | None = None, memory_padding_mask: Tensor | None = None
    ) -> DecodingState:
        """Return the state before the first token; the cross attentions encode ``memory`` here, once."""
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
            padding_mask: [B, T], True = padding, on either side; every sequence needs a token.

        Returns:
            Logits [B, V] of the token after each sequence's last, and the new state.
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
        """Read one token per sequence, [B]; return the logits [B, V] of the next one and the new state."""
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
        x, state = self.read_layers(self.decoder_embedding(tokens, index), state, padding_mask)
        return self.finish(x), state

    def finish(self, x: Tensor) -> Tensor:
        """Apply the modules between the last layer and :meth:`predict`, such as a final norm."""
        return x

    def _check_room(self, tokens: Tensor, state: DecodingState) -> None:
        limit = self.decoder_embedding.positions.max_length
        if limit is not None and state.num_read + tokens.shape[1] > limit:
            raise UserError(
                f"tokens {tuple(tokens.shape)} after {state.num_read} earlier ones are more than the {limit} learned "
                "positions: generate less, or build the backbone with more of them"
            )
