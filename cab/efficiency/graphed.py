"""Decoding without Python between the kernels: a token is one CUDA graph, which repeats itself on the same memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cab.attention import Attention, DecodeState

WARM_UP = 3
"""Calls before a capture, as torch.cuda.graph asks for them: libraries are loaded in the first."""


class StandingStep:
    """``step`` of a state of constant size, from tensors that stay where they are back into them.

    They are written in the order of the new state: none of it may be a view of one that is written before.

    Args:
        module: its ``has_constant_size_state`` is set.
        state: after a prefix.
        token: [B, D], of the type of those to come.

    Attributes:
        token, state: what the next call reads; it leaves the state after the token there.
        output: [B, D], of the last call.
    """

    def __init__(self, module: Attention, state: DecodeState, token: Tensor) -> None:
        self.module, self.token = module, token.clone()
        self.state = {name: x.clone() for name, x in state.items()}
        self.output = torch.empty_like(token)

    def __call__(self) -> None:
        output, after = self.module.step(self.token, self.state)
        self.output.copy_(output)
        for name, x in after.items():
            self.state[name].copy_(x)


def captured(call: Callable[[], None]) -> Callable[[], None]:
    """``call`` as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
