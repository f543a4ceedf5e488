"""The memory that each example of a batch carries to the next batch (``trainer.memory_length``)."""

from __future__ import annotations

import torch

from cab.attention import DecodeState


class RecurrentMemory:
    """The memory of each micro-batch of a step in this process; None before the first step of an epoch.

    Args:
        count: micro-batches per step.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self.reset()

    def reset(self) -> None:
        """Clear the memory: at the start of an epoch no example continues one of the batch before."""
        self._pieces: list[DecodeState | None] = [None] * self._count

    def __getitem__(self, piece: int) -> DecodeState | None:
        return self._pieces[piece]

    def __setitem__(self, piece: int, memory: DecodeState | None) -> None:
        self._pieces[piece] = memory

    def state_dict(self) -> DecodeState | None:
        """Return the memory of all examples after a step, independent of micro-batches; None if there is none."""
        pieces = [piece for piece in self._pieces if piece is not None]
        return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]} if pieces else None

    def load_state_dict(self, state: DecodeState | None, device: torch.device) -> None:
        """Restore what :meth:`state_dict` returned, split into the micro-batches of this run."""
        if state is not None:
            split = {name: x.to(device).chunk(self._count) for name, x in state.items()}
            self._pieces = [{name: x[piece] for name, x in split.items()} for piece in range(self._count)]
