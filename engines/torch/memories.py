"""What the rows of a step remember of the step before (``trainer.memory_length``)."""

from __future__ import annotations

import torch

from cab.attention import DecodeState


class Memories:
    """One for each micro-batch of a step in this process; None before the first of an epoch."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.forget()

    def forget(self) -> None:
        """An epoch begins: no row goes on from the batch before."""
        self._pieces: list[DecodeState | None] = [None] * self._count

    def __getitem__(self, piece: int) -> DecodeState | None:
        return self._pieces[piece]

    def __setitem__(self, piece: int, memory: DecodeState | None) -> None:
        self._pieces[piece] = memory

    def state(self) -> DecodeState | None:
        """Those of all rows after a step, however it is cut into micro-batches; None where nothing is remembered."""
        pieces = [piece for piece in self._pieces if piece is not None]
        return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]} if pieces else None

    def load(self, state: DecodeState | None, device: torch.device) -> None:
        if state is not None:
            cut = {name: rows.to(device).chunk(self._count) for name, rows in state.items()}
            self._pieces = [{name: rows[piece] for name, rows in cut.items()} for piece in range(self._count)]
