"""Decoding with CUDA graphs: one graph per token, replayed on static memory, without Python overhead."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cab.attention import Attention, DecodeState

WARM_UP = 3
"""Warm-up calls before a capture, as torch.cuda.graph requires: libraries are initialized in the first."""


class CudaGraphStep:
    """A decoding step with a constant-size state that reads and writes static tensors.

    The new state is written entry by entry; no entry may be a view of one that is written before it.

    Args:
            module: attention with ``has_constant_size_state``.
            state: state after a prefix.
            token: [B, D], dtype of the tokens to be decoded.

    Attributes:
            token, state: inputs of the next call, which replaces the state.
            output: output [B, D] of the last call.
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


def capture_graph(call: Callable[[], None]) -> Callable[[], None]:
    """Capture ``call`` as a CUDA graph and return its replay function."""
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
