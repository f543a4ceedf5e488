"""The timed call of each phase."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cab.attention import Attention, DecodeState
from cab.efficiency.cost import CAUSAL_PHASES
from cab.efficiency.setting import Setting
from cab.errors import UserError
from cab.patterns import Pattern
from cab.verification.growth import peak_bytes

DECODED = 64
"""Number of decoded tokens, sufficient to include the growth of caches in blocks."""

PROMPT_LENGTH = 512
"""Length of the pieces in which the prefix is read, which limits its memory."""

TRAINING_PASSES = 3
"""Operations of forward and backward relative to forward: each product has two of its size in its gradient.

Operations of recomputation are not part of the algorithm.
"""


Inputs = dict[str, Tensor]
"""Arguments of a call: query, key and value [B, N, D], or packed [T, D] with their cumulative lengths; masks."""


@dataclass(frozen=True)
class Workload:
    """A timed call.

    Args:
        call: performs the work once.
        tokens: number of tokens it decodes.
        state_bytes: size of the decoding state, or the peak memory of a graph, which its replays do not allocate.
        counted: call whose operations are counted.
        passes: factor on the counted operations.
        least_bytes: bytes of inputs, outputs, weights and state, each counted once (per token when decoding).
    """

    call: Callable[[], object]
    tokens: int = 1
    state_bytes: int | None = None
    counted: Callable[[], object] = lambda: None
    passes: int = 1
    least_bytes: int = 0


def held_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the total size of distinct tensors in bytes."""
    return sum(x.numel() * x.element_size() for x in {id(x): x for x in tensors}.values())


def least_bytes(module: nn.Module, inputs: Inputs) -> int:
    """Return the bytes of inputs, weights and output, which has the size of the query."""
    return held_bytes((*inputs.values(), *module.parameters())) + held_bytes([inputs["query"]])


def make_inputs(pattern: Pattern, length: int, setting: Setting, *, requires_grad: bool = False) -> Inputs:
    """Return a standard normal query [B, N, D], and in cross patterns a source of equal length as key and value."""

    def sequence() -> Tensor:
        x = torch.randn(setting.batch_size, length, setting.embed_dim, device=setting.device)
        return x.to(setting.torch_dtype).requires_grad_(requires_grad)

    inputs = {"query": sequence()}
    if pattern.is_cross:
        inputs["key"] = inputs["value"] = sequence()
    return inputs


def bound(module: Any, inputs: Inputs) -> Callable[[], Tensor]:
    """Return the call of the module, or of its packed form for packed inputs."""
    return partial(module.forward_packed if "query_cu_seqlens" in inputs else module, **inputs)


def forward(
    module: nn.Module, pattern: Pattern, length: int, setting: Setting, *, make: Callable[..., Inputs] = make_inputs
) -> Workload:
    """Return the workload of the output in evaluation mode, without gradients, on inputs of ``make``."""
    inputs = make(pattern, length, setting)
    call = inference(bound(module.eval(), inputs), setting)
    return Workload(call, counted=call, least_bytes=least_bytes(module, inputs))


def forward_graph(module: nn.Module, pattern: Pattern, length: int, setting: Setting) -> Workload:
    """Return the workload of :func:`forward` as one CUDA graph."""
    workload = forward(module, pattern, length, setting)
    graph = capture_graph(workload.call)
    return dataclasses.replace(workload, call=graph, state_bytes=peak_bytes(workload.call, setting.device))


def inference(output_of: Callable[[], Tensor], setting: Setting) -> Callable[[], Tensor]:
    """Return ``output_of`` as a call without gradients."""

    def call() -> Tensor:
        with torch.no_grad(), setting.autocast():
            return output_of()

    return call


def in_evaluation(module: nn.Module, call: Callable[[], object]) -> None:
    """Call in evaluation mode, between calls in training mode."""
    module.eval()
    call()
    module.train()


def forward_backward(
    module: nn.Module, pattern: Pattern, length: int, setting: Setting, *, make: Callable[..., Inputs] = make_inputs
) -> Workload:
    """Return the workload of the output in training mode and the gradients of inputs and parameters."""
    inputs = make(pattern, length, setting, requires_grad=True)
    output_of = bound(module.train(), inputs)
    grad = torch.randn(inputs["query"].shape, device=setting.device)

    def call() -> None:
        with setting.autocast():
            output = output_of()
        output.backward(grad.to(output.dtype))
        for tensor in (*inputs.values(), *module.parameters()):
            tensor.grad = None

    counted = partial(in_evaluation, module, inference(output_of, setting))
    # gradients have the sizes of their tensors
    return Workload(call, counted=counted, passes=TRAINING_PASSES, least_bytes=2 * least_bytes(module, inputs))


def prefill(module: nn.Module, pattern: Pattern, length: int, setting: Setting) -> Workload:
    """Return the workload of reading a prompt of ``length`` into an empty state; in CC, so long is the source, too."""
    inputs = make_inputs(pattern, length, setting)
    decoder = decoder_of(module)

    @torch.no_grad()
    def call() -> DecodeState:
        with setting.autocast():
            return decoder.prefill(inputs["query"], empty_state(decoder, inputs, setting))[1]

    return Workload(call, counted=call, least_bytes=least_bytes(module, inputs) + held_bytes(call().values()))


def decode(module: nn.Module, pattern: Pattern, length: int, setting: Setting) -> Workload:
    """Return the workload of ``DECODED`` steps after a prefix of ``length``; in CC the source has that length too."""
    return decoding(*after_prefix(module, pattern, length, setting), setting)


def decode_graph(module: nn.Module, pattern: Pattern, length: int, setting: Setting) -> Workload:
    """Return the workload of :func:`decode` with one CUDA graph per token."""
    if not getattr(module, "has_constant_size_state", False):
        raise UserError("the decoding state grows, which CUDA graphs do not support")
    module, tokens, state = after_prefix(module, pattern, length, setting)
    step = CudaGraphStep(module, state, tokens[0])

    @torch.no_grad()
    def one_token() -> None:
        with setting.autocast():
            step()

    replay = capture_graph(one_token)

    def call() -> None:
        for name, x in state.items():
            step.state[name].copy_(x)
        for token in tokens:
            step.token.copy_(token)
            replay()

    return decoding(module, tokens, state, setting, call)


@torch.no_grad()
def after_prefix(
    module: nn.Module, pattern: Pattern, length: int, setting: Setting
) -> tuple[Attention, Tensor, DecodeState]:
    """Return the module, the tokens [DECODED, B, D] to decode, and the state before them."""
    decoder, inputs = decoder_of(module), make_inputs(pattern, length, setting)
    decoded = torch.randn(DECODED, setting.batch_size, setting.embed_dim, device=setting.device)
    with setting.autocast():
        state = empty_state(decoder, inputs, setting)
        for tokens in inputs["query"].split(PROMPT_LENGTH, dim=1):
            _, state = decoder.prefill(tokens, state)
    return decoder, decoded.to(setting.torch_dtype), state


def decoder_of(module: nn.Module) -> Attention:
    """Return the module in evaluation mode; UserError if it has no decoding."""
    if not isinstance(module, Attention):
        raise UserError("does not support step-by-step decoding")
    return module.eval()


def empty_state(module: Attention, inputs: Inputs, setting: Setting) -> DecodeState:
    """Return the state before the first token."""
    source = {name: inputs[name] for name in ("key", "value") if name in inputs}
    return module.init_state(setting.batch_size, device=setting.device, dtype=setting.torch_dtype, **source)


def decoding(
    module: Attention, tokens: Tensor, state: DecodeState, setting: Setting, call: Callable[[], object] | None = None
) -> Workload:
    """Return the workload of decoding ``tokens`` after ``state`` by ``call``, or by default by ``step``."""

    @torch.no_grad()
    def steps() -> None:
        after = state
        with setting.autocast():
            for token in tokens:
                _, after = module.step(token, after)

    state_bytes = held_bytes(state.values())
    least = state_bytes + held_bytes(module.parameters()) + 2 * held_bytes([tokens]) // DECODED
    return Workload(call or steps, DECODED, state_bytes, counted=steps, least_bytes=least)


# --- CUDA graphs ---------------------------------------------------------------------------------------------------


class CudaGraphStep:
    """A decoding step with a constant-size state that reads and writes static tensors: copies of state and token.

    The new state is written entry by entry; no entry may be a view of one that is written before it.
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


def capture_graph(call: Callable[[], object]) -> Callable[[], None]:
    """Capture ``call`` as a CUDA graph and return its replay function."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # as torch.cuda.graph requires: libraries are initialized in the first
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


PHASES: dict[str, Callable[[nn.Module, Pattern, int, Setting], Workload]] = {
    "forward": forward,
    "forward-graph": forward_graph,
    "forward+backward": forward_backward,
    "prefill": prefill,
    "decode": decode,
    "decode-graph": decode_graph,
}


def is_defined(phase: str, pattern: Pattern) -> bool:
    """Return whether the phase is defined for the pattern; only causal patterns read prompts and decode."""
    return phase not in CAUSAL_PHASES or pattern.is_causal
