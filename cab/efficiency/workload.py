"""The call that is timed, for each phase."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cab.attention import Attention, DecodeState
from cab.efficiency.cost import DECODING
from cab.efficiency.graphed import StandingStep, captured
from cab.efficiency.setting import Setting
from cab.errors import UserError
from cab.patterns import Pattern

DECODED = 64
"""Tokens that are decoded one after the other: caches that grow in steps pay for a whole one."""

PROMPT = 512
"""Tokens of the prefix that are read at once, so that reading it needs little memory."""


BACKWARD = 3
"""Operations of forward and backward in those of forward: each product has two of its size in its gradient. What an
implementation computes again, to keep less, is no part of the algorithm."""


@dataclass(frozen=True)
class Workload:
    """``call`` does the work once; ``tokens`` that it decodes; ``state_bytes`` of decoding.

    Args:
        counted: a call whose operations are counted, ``passes`` times.
        least_bytes: inputs, outputs, weights and state, each once (of a token).
    """

    call: Callable[[], object]
    tokens: int = 1
    state_bytes: int | None = None
    counted: Callable[[], object] = lambda: None
    passes: int = 1
    least_bytes: int = 0


def held_bytes(tensors: Iterable[Tensor]) -> int:
    """Of tensors, one that is given twice once."""
    return sum(x.numel() * x.element_size() for x in {id(x): x for x in tensors}.values())


def least_bytes(module: nn.Module, inputs: dict[str, Tensor]) -> int:
    """The inputs and weights read, an output as large as the query written."""
    return held_bytes((*inputs.values(), *module.parameters())) + held_bytes([inputs["query"]])


def make_inputs(pattern: Pattern, length: int, setting: Setting, *, requires_grad: bool = False) -> dict[str, Tensor]:
    """Standard normal query [B, N, D], and in cross patterns a source of the same length as key and value."""

    def sequence() -> Tensor:
        x = torch.randn(setting.batch_size, length, setting.embed_dim, device=setting.device)
        return x.to(setting.torch_dtype).requires_grad_(requires_grad)

    inputs = {"query": sequence()}
    if pattern.is_cross:
        inputs["key"] = inputs["value"] = sequence()
    return inputs


def forward(module: nn.Module, pattern: Pattern, length: int, setting: Setting) -> Workload:
    """The output alone: evaluation mode, no gradients recorded."""
    inputs = make_inputs(pattern, length, setting)
    module.eval()

    def call() -> Tensor:
        with torch.no_grad(), setting.autocast():
            return module(**inputs)

    return Workload(call, counted=call, least_bytes=least_bytes(module, inputs))


def forward_backward(module: nn.Module, pattern: Pattern, length: int, setting: Setting) -> Workload:
    """The output in training mode, and the gradients to inputs and parameters."""
    inputs = make_inputs(pattern, length, setting, requires_grad=True)
    grad = torch.randn(setting.batch_size, length, setting.embed_dim, device=setting.device)
    module.train()

    def call() -> None:
        with setting.autocast():
            output = module(**inputs)
        output.backward(grad.to(output.dtype))
        for tensor in (*inputs.values(), *module.parameters()):
            tensor.grad = None

    def counted() -> None:
        module.eval()
        with setting.autocast():
            module(**inputs)
        module.train()

    # the gradient of each tensor is as large as it is
    return Workload(call, counted=counted, passes=BACKWARD, least_bytes=2 * least_bytes(module, inputs))


def decode(module: nn.Module, pattern: Pattern, length: int, setting: Setting) -> Workload:
    """``DECODED`` tokens one by one after a prefix of ``length``; in CC the source has that length too."""
    module, tokens, state = after_prefix(module, pattern, length, setting)
    return decoding(module, tokens, state, setting)


def decode_graph(module: nn.Module, pattern: Pattern, length: int, setting: Setting) -> Workload:
    """The same, a token being one CUDA graph."""
    if not getattr(module, "has_constant_size_state", False):
        raise UserError("keeps a state that grows: no CUDA graph repeats its step")
    module, tokens, state = after_prefix(module, pattern, length, setting)
    step = StandingStep(module, state, tokens[0])

    @torch.no_grad()
    def one_token() -> None:
        with setting.autocast():
            step()

    replay = captured(one_token)

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
    """The module, tokens [DECODED, B, D] that are to be decoded, and the state before them."""
    if not isinstance(module, Attention):
        raise UserError("does not decode token by token")
    inputs = make_inputs(pattern, length, setting)
    tokens = torch.randn(DECODED, setting.batch_size, setting.embed_dim, device=setting.device)
    module.eval()
    with setting.autocast():
        source = {name: inputs[name] for name in ("key", "value") if name in inputs}
        state = module.init_state(setting.batch_size, device=setting.device, dtype=setting.torch_dtype, **source)
        for part in inputs["query"].split(PROMPT, dim=1):
            _, state = module.prefill(part, state)
    return module, tokens.to(setting.torch_dtype), state


def decoding(
    module: Attention, tokens: Tensor, state: DecodeState, setting: Setting, call: Callable[[], object] | None = None
) -> Workload:
    """What reads ``tokens`` after ``state``: ``call``, or one step after the other."""

    @torch.no_grad()
    def steps() -> None:
        after = state
        with setting.autocast():
            for token in tokens:
                _, after = module.step(token, after)

    state_bytes = held_bytes(state.values())
    least = state_bytes + held_bytes(module.parameters()) + 2 * held_bytes([tokens]) // DECODED
    return Workload(call or steps, DECODED, state_bytes, counted=steps, least_bytes=least)


PHASES: dict[str, Callable[[nn.Module, Pattern, int, Setting], Workload]] = {
    "forward": forward,
    "forward+backward": forward_backward,
    "decode": decode,
    "decode-graph": decode_graph,
}


def is_defined(phase: str, pattern: Pattern) -> bool:
    """Only causal patterns decode."""
    return phase not in DECODING or pattern.is_causal
