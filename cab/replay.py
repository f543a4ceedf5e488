"""Bit-identical training and decoding for any causal attention, by recomputing the open chunk."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cab.attention import Attention, Decoded, DecodeState
from cab.errors import UserError

OPEN = "replay.open"
"""Name of the tokens [B, T, D] of the open chunk in the decoding state."""


class Replay(nn.Module):
    """Read sequences in chunks of ``chunk_size`` tokens in training and in decoding, so that both agree in every bit.

    A row is a loop of :meth:`Attention.prefill` over its chunks. A step appends its token to the open chunk, reads this
    chunk again from the state at its start, with zeros for the missing tokens, and returns one output. All products
    then have the same shapes. Exact for a method whose rounding does not depend on later tokens
    (:attr:`cab.claims.Claims.noncausal_rounding`); a step costs one chunk.

    Args:
        attention: an attention of pattern CS, or a module with ``embed_dim``, ``init_state`` and ``prefill``.
        chunk_size: number of tokens per call C.

    Raises:
        ValueError: ``chunk_size`` is not positive, or the attention has no ``prefill``.
    """

    def __init__(self, attention: Attention, chunk_size: int) -> None:
        super().__init__()
        if chunk_size < 1:
            raise UserError(f"chunk_size must be positive, got {chunk_size}")
        if not hasattr(attention, "prefill"):
            raise UserError(f"{type(attention).__name__} has no prefill, with which Replay reads chunks")
        self.attention, self.chunk_size, self.embed_dim = attention, chunk_size, attention.embed_dim

    def forward(self, query: Tensor) -> Tensor:
        """Compute the outputs [B, N, D] of whole rows without padding."""
        return self.prefill(query, self.attention.init_state(len(query)) | {OPEN: query[:, :0]})[0]

    def init_state(self, batch_size: int) -> DecodeState:
        """Return the state before the first token: that of the attention, and an open chunk without tokens."""
        return self.attention.init_state(batch_size) | {
            OPEN: next(self.attention.parameters()).new_zeros(batch_size, 0, self.embed_dim)
        }

    def prefill(self, query: Tensor, state: DecodeState) -> Decoded:
        """Read the tokens ``query`` [B, T, D]; return their outputs and the new state."""
        before = {name: x for name, x in state.items() if name != OPEN}
        tokens, outputs = torch.cat([state[OPEN], query], dim=1), list[Tensor]()
        for chunk in tokens.split(self.chunk_size, dim=1):
            missing = self.chunk_size - chunk.shape[1]
            output, after = self.attention.prefill(F.pad(chunk, (0, 0, 0, missing)), before)
            outputs.append(output[:, : chunk.shape[1]])
            before = before if missing else after
        rest = tokens[:, tokens.shape[1] // self.chunk_size * self.chunk_size :]
        return torch.cat(outputs, dim=1)[:, state[OPEN].shape[1] :], before | {OPEN: rest}

    def step(self, query_t: Tensor, state: DecodeState) -> Decoded:
        """Read one token [B, D] or [B, 1, D]; return its output in the same shape and the new state."""
        is_flat = query_t.dim() == 2
        output, state = self.prefill(query_t.unsqueeze(1) if is_flat else query_t, state)
        return (output.squeeze(1) if is_flat else output), state
