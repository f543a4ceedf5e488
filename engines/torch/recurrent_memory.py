"""The memory that a recurrent task carries from one training step to the next."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from cab.attention import DecodeState
from cab.backbone import Backbone
from cab.task import Task


class RecurrentMemory:
    """The memory of each of ``count`` micro-batches of a step, in their order; None before the first of an epoch."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.reset()

    def reset(self) -> None:
        """Clear the memory: at the start of an epoch no example continues one of the batch before."""
        self._memories: deque[DecodeState | None] = deque([None] * self._count)

    def loss(self, task: Task, model: Backbone, batch: Any) -> Tensor:
        """Return the task's loss of the next micro-batch, and carry its memory to the next step."""
        loss, memory = task.recurrent_loss(model, batch, self._memories.popleft())
        self._memories.append(memory)
        return loss

    def state_dict(self) -> DecodeState | None:
        """Return the memory of all examples after a step, the same for any micro-batches; None without one."""
        memories = [memory for memory in self._memories if memory is not None]
        return {name: torch.cat([memory[name] for memory in memories]) for name in memories[0]} if memories else None

    def load_state_dict(self, state: DecodeState | None, device: torch.device) -> None:
        """Restore what :meth:`state_dict` returned, split into the micro-batches of this run."""
        self.reset()
        if state is not None:
            chunks = {name: x.to(device).chunk(self._count) for name, x in state.items()}
            self._memories = deque({name: x[piece] for name, x in chunks.items()} for piece in range(self._count))
