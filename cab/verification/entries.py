"""Entries: the ways in which an attention computes, each as one function of a call.

An entry returns named tensors: outputs and the gradients of inputs [B, N, D], which are zero at padding, and gradients
of parameters [1, P]. Relations compare them; see :mod:`cab.verification.relations`.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cab.verification.inputs import INPUTS, Inputs, Module, gradients_of, learned, leaves_of, masked_inputs, seed_torch
from cab.verification.subject import LONG_HEADS, LONG_WIDTH, Subject

Values = dict[str, Tensor]
"""What an entry computes, by name."""

State = dict[str, Tensor]
"""A decoding state."""

LONGEST = 0
"""Length of a setup that stands for the long sequences of the full suite."""


VANISHING = 1e-9
"""Dropout rate that takes the path with dropout and drops nothing."""


def unchanged(x: Any) -> Any:
    """Return the argument."""
    return x


class Setup(NamedTuple):
    """Sizes and inputs of a call.

    Attributes:
        has_dropout: whether the module has dropout, which training mode applies.
        is_full: whether only the full suite has the setup.
        drops_nothing: whether training mode takes the path with dropout, at a rate of 1e-9.
        opens_gates: whether the module forgets as little as it can, so that far tokens affect the output.
    """

    length: int = 17
    batch: int | None = None
    scale: float = 1.0
    padding: str = ""
    num_heads: int | None = None
    embed_dim: int | None = None
    source_length: int | None = None
    has_dropout: bool = False
    is_full: bool = False
    seed: int = 0
    drops_nothing: bool = False
    opens_gates: bool = False

    def __str__(self) -> str:
        parts = {"": f"n={self.length}", "m=": self.source_length, "rows ": self.batch, "width ": self.embed_dim}
        scale = self.scale if self.scale != 1.0 else None
        more = {"heads ": self.num_heads, "inputs x": scale, "padding ": self.padding or None}
        more["dropout "] = VANISHING if self.drops_nothing else None
        more["gates "] = "open" if self.opens_gates else None
        return ", ".join(
            f"{name}{value:g}" if isinstance(value, float) else f"{name}{value}"
            for name, value in (parts | more).items()
            if value is not None
        )

    def for_subject(self, subject: Subject) -> list[Setup]:
        """Return the setups for the quick or the full suite."""
        if (self.is_full and not subject.long) or (self.opens_gates and not subject.opens_gates):
            return []
        return [self] if self.length else [self._replace(length=length) for length in subject.long]


@dataclass(frozen=True)
class Call:
    """A module, its inputs and everything around one run of an entry.

    Attributes:
        seed: seed of torch's generator for the call.
        around: context in which the entry runs.
        view: function of the inputs just before the module receives them, such as another layout in memory.
        carry: function of the decoding state between two calls.
        has_graph: whether decoding records a graph for gradients.
        frozen: inputs without a gradient.
        sees_padding: whether outputs and gradients at padding are kept.
        cotangent: function from the outputs to the direction of the gradient (default: a random direction).
    """

    subject: Subject
    setup: Setup
    entry: Entry
    module: Module
    inputs: Inputs
    seed: int = 1
    around: Callable[[], Any] = contextlib.nullcontext
    view: Callable[[Inputs], Inputs] = unchanged
    carry: Callable[[State], State] = unchanged
    has_graph: bool = False
    frozen: tuple[str, ...] = ()
    sees_padding: bool = False
    cotangent: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def of(cls, subject: Subject, setup: Setup, entry: Entry) -> Call:
        """Return the plain call: a new module and its inputs."""
        module = build(subject, setup)
        length, batch, scale, padding, *_ = setup
        inputs = subject.draw(module, length, setup.source_length, batch=batch, scale=scale, padding=padding)
        return cls(subject, setup, entry, module, inputs)

    def but(self, **changes: Any) -> Call:
        """Return the call with other attributes."""
        return replace(self, **changes)

    def new_module(self, seed: int = 0, *, keeps_zeros: bool = False) -> Module:
        """Return a new module of the size and dtype of that of the call."""
        dtype = self.inputs.query.dtype
        setup = self.setup._replace(seed=self.setup.seed + seed)
        module = build(self.subject, setup, keeps_zeros=keeps_zeros)
        return module if dtype == torch.float32 else module.to(dtype)

    def double(self) -> Call:
        """Return the call in float64."""
        return self.but(module=copy.deepcopy(self.module).double(), inputs=self.inputs.map(Tensor.double))

    def run(self, entry: Entry | None = None) -> Values:
        """Return what the entry, or another one, computes."""
        call = self if entry is None else self.but(entry=entry)
        with self.around():
            return call.entry.compute(call)

    @property
    def lowering(self) -> Any:
        """Autocast of the entry, for calls alone: the backward pass is outside autocast, as in training."""
        device, dtype = self.subject.device.partition(":")[0], self.entry.dtype
        return torch.autocast(device, dtype=dtype) if dtype else contextlib.nullcontext()

    def in_mode(self, *, training: bool) -> Module:
        """Return the module in a mode, without a call of ``train`` if it is in it already."""
        return self.module if self.module.training == training else self.module.train(training)

    def masked(self, output: Tensor) -> Tensor:
        """Return the output with zeros at padding."""
        output = output.detach()
        return output.where(self.inputs.real.unsqueeze(-1), 0.0) if self.hides_padding else output

    @property
    def is_random(self) -> bool:
        """Whether the entry draws random numbers without dropout, which other shapes or modes do not draw."""
        return "training mode" in self.entry.name and self.subject.is_random_in_training

    @property
    def where(self) -> str:
        """The setup in words."""
        return str(self.setup if self.subject.pattern.is_cross else self.setup._replace(source_length=None))

    @property
    def hides_padding(self) -> bool:
        return bool(self.setup.padding) and not self.sees_padding


def build(subject: Subject, setup: Setup, *, keeps_zeros: bool = False) -> Module:
    """Return a module for a setup."""
    small = {"embed_dim": LONG_WIDTH, "num_heads": LONG_HEADS} if subject.is_long(setup.length) else {}
    sizes = {name: x for name in ("num_heads", "embed_dim") if (x := getattr(setup, name)) is not None}
    dropout = subject.dropout if setup.has_dropout else min(subject.dropout, VANISHING) if setup.drops_nothing else 0.0
    more: dict[str, Any] = {"keeps_zeros": keeps_zeros, "opens_gates": setup.opens_gates}
    return subject.build(seed=setup.seed, dropout=dropout, **more, **small | sizes)


def initial_state(module: Module, inputs: Inputs) -> State:
    """Return the decoding state of ``module`` for the batch, and for the source in cross patterns."""
    source = {"key": inputs.key, "value": inputs.value, "key_padding_mask": inputs.key_padding}
    state = module.init_state(inputs.query.shape[0], **source if inputs.key is not None else {})
    if not isinstance(state, dict) or not all(isinstance(x, Tensor) for x in state.values()):
        raise TypeError(f"init_state must return a flat dict of tensors, got {type(state).__name__}")
    return state


def decode(
    module: Module, inputs: Inputs, chunks: Sequence[int], carry: Callable[[State], State] = unchanged, **how: bool
) -> Tensor:
    """Return the outputs [B, N, D] of reading the targets in chunks, by ``step`` (one token) or ``prefill``."""
    return read_chunks(module, inputs, chunks, initial_state(module, inputs), carry, **how)[0]


def read_chunks(
    module: Module,
    inputs: Inputs,
    chunks: Sequence[int],
    state: State,
    carry: Callable[[State], State] = unchanged,
    *,
    reuses_memory: bool = False,
    steps: bool = True,
) -> tuple[Tensor, State]:
    """Return the outputs [B, N, D] of reading the first targets in chunks from ``state``, and the new state.

    The module receives ``carry(state)`` in place of the state that it returned. With ``reuses_memory``, tokens and
    outputs are overwritten after each call. Without ``steps``, a single token is a prompt as well.
    """
    start, outputs = 0, [inputs.query[:, :0]]
    for size in chunks:
        tokens = inputs.targets(start, start + size)
        mask = {} if tokens.query_padding is None else {"query_padding_mask": tokens.query_padding}
        read = module.step if size == 1 and steps else module.prefill
        query = tokens.query.clone() if reuses_memory else tokens.query
        output, state = read(query, carry(state), **mask)
        outputs.append(output.clone() if reuses_memory else output)
        for x in (query, output) if reuses_memory else ():
            x.fill_(torch.nan)
        start += size
    return torch.cat(outputs, dim=1), state


@dataclass(frozen=True)
class Entry:
    """One way to compute.

    Attributes:
        name: the entry in messages.
        compute: function of a call.
        applies: whether a subject has the entry.
        longest: largest number of tokens; longer sequences are cut.
        pads_prompts: whether padding is in the first call of decoding alone.
        dtype: dtype of the autocast in which the entry runs; see :func:`lowered`.
    """

    name: str
    compute: Callable[[Call], Values]
    applies: Callable[[Subject], bool] = lambda _: True
    longest: int = sys.maxsize
    pads_prompts: bool = False
    dtype: torch.dtype | None = None

    def supports(self, subject: Subject, padding: str) -> bool:
        """Return whether a subject has the entry for inputs with this padding."""
        has_entry = self.applies(subject) and self.dtype in (None, *subject.autocast_dtypes)
        if not has_entry or not padding or self.applies not in (_decodes, _prefills):
            return has_entry
        return subject.decodes_padding(padding, in_prompts=self.pads_prompts)


@torch.no_grad()
def _forward(call: Call, *, training: bool = False) -> Values:
    with call.lowering:
        output = call.view(call.inputs).run(call.in_mode(training=training), seed=call.seed)
    if training:
        learned(call.module, output)
    return {"outputs": call.masked(output)}


def differentiate(call: Call, *, training: bool, run: Callable[[Inputs, Module], Tensor] = Inputs.run) -> Values:
    """Return the outputs of ``run``, their gradients, and what :func:`learned` returns after the backward pass."""
    module, inputs = call.in_mode(training=training), call.inputs.requiring_grad()
    for name, x in inputs.tensors().items():
        x.requires_grad_(name not in call.frozen)
    seed_torch(call.seed, call.subject.device)
    with call.lowering:
        output = run(call.view(inputs), module)
    direction = (call.cotangent or random_direction)(output)
    direction = direction.where(call.inputs.real.unsqueeze(-1), 0.0) if call.hides_padding else direction
    leaves = {name: x for name, x in leaves_of(module, inputs).items() if x.requires_grad}
    values = {f"gradient of {name}": x for name, x in gradients_of(output, leaves, direction).items()}
    if call.hides_padding:
        padding = {f"gradient of {name}": mask for name, _, mask in masked_inputs(call.inputs)}
        values = {n: x.masked_fill(padding[n][..., None], 0.0) if n in padding else x for n, x in values.items()}
    return {"outputs": call.masked(output)} | values | learned(module, output)


def random_direction(output: Tensor) -> Tensor:
    """Return a normal direction, the same for every output of a shape."""
    return torch.randn(output.shape, generator=torch.Generator().manual_seed(4)).to(output)


def _decoding(call: Call, *, chunks: Callable[[int], Sequence[int]], training: bool = False) -> Values:
    inputs = call.view(call.inputs)
    seed_torch(call.seed, call.subject.device)
    with contextlib.nullcontext() if call.has_graph else torch.no_grad(), call.lowering:
        outputs = decode(call.in_mode(training=training), inputs, chunks(inputs.query.shape[1]), call.carry)
    return {"outputs": call.masked(outputs)}


def _one_source(call: Call) -> Values:
    """Return outputs and, in a causal pattern, those of steps, with one tensor as key and value."""
    call = call.but(inputs=replace(call.inputs, value=call.inputs.key))
    return _forward(call) | ({"outputs of steps": STEPS.compute(call)["outputs"]} if call.subject.decodes else {})


def pack(inputs: Inputs, module: Module) -> Tensor:
    """Run the real tokens of every row in one tensor, and return the outputs of the rows."""
    masks = {name: ~mask for name, _, mask in masked_inputs(inputs)}
    tensors = [x[masks[name]] for name, x in inputs.tensors().items()]
    cu_seqlens = {
        f"{name}_cu_seqlens": cumulative(masks[name].sum(1).tolist(), masks[name])
        for name in ("query", "key")
        if name in masks
    }
    output = module.forward_packed(*tensors, **cu_seqlens)
    if output.shape != tensors[0].shape:
        raise ValueError(f"packed output {list(output.shape)}, query {list(tensors[0].shape)}")
    return torch.zeros_like(inputs.query).masked_scatter(masks["query"][..., None], output)


def cumulative(lengths: Sequence[int], like: Tensor) -> Tensor:
    """Return the cumulative lengths [S + 1], as int32 on the device of ``like``."""
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=like.device)


def chunked(length: int) -> list[int]:
    """Return the sizes of uneven chunks, of which some are single tokens."""
    sizes = [length // 3, 1, length // 2]
    return [size for size in (*sizes, length - sum(sizes)) if size]


def _single(length: int) -> list[int]:
    return [1] * length


def _trained(call: Call, *, chunks: Callable[[int], Sequence[int]]) -> Values:
    """Return outputs and gradients of decoding in training mode; caches of other packages have no gradients."""
    if not call.subject.keeps_whole_contract:
        return _decoding(call, chunks=chunks, training=True)
    return differentiate(call, training=True, run=lambda x, module: decode(module, x, chunks(x.query.shape[1])))


def _prompt(length: int) -> list[int]:
    return [max(length - 2, 1), *[1] * min(2, length - 1)]


_decodes, _prefills = attrgetter("decodes"), attrgetter("prefills")


def _packs(subject: Subject) -> bool:
    return hasattr(subject.cls, "forward_packed")


FORWARD = Entry("outputs", _forward)
TRAINED_OUTPUTS = Entry("outputs in training mode", partial(_forward, training=True))
GRADIENT = Entry("gradients", partial(differentiate, training=False))
TRAINING = Entry("outputs and gradients in training mode", partial(differentiate, training=True))
STEPS = Entry("steps", partial(_decoding, chunks=_single), _decodes, longest=7)
ALL_STEPS = replace(STEPS, longest=sys.maxsize)
PROMPT = Entry("prompts", partial(_decoding, chunks=_prompt), _prefills, longest=9)
ALL_PROMPT = replace(PROMPT, longest=sys.maxsize)
PADDED_PROMPT = replace(ALL_STEPS, name="padded prompts", pads_prompts=True)
CHUNKS = Entry("prompts in chunks", partial(_decoding, chunks=chunked), _prefills)
TRAINING_STEPS = Entry("steps in training mode", partial(_trained, chunks=_single), _decodes)
TRAINING_PROMPT = Entry("prompts in training mode", partial(_trained, chunks=chunked), _prefills)
ONE_SOURCE = Entry("outputs for one source", _one_source, lambda subject: subject.pattern.is_cross, longest=7)
PACKED = Entry("packed sequences", partial(differentiate, training=False, run=pack), _packs)
TRAINING_PACKED = Entry("packed sequences in training mode", partial(differentiate, training=True, run=pack), _packs)


def lowered(*entries: Entry) -> tuple[Entry, ...]:
    """Return the entries under autocast to each dtype of low precision, for subjects that support it."""
    return tuple(
        replace(entry, name=f"{entry.name} under {dtype}", dtype=dtype)
        for dtype in (torch.bfloat16, torch.float16)
        for entry in entries
    )


METHODS = (FORWARD, TRAINING, STEPS, PROMPT)
"""One entry per method of the contract, and training mode."""

DECODING = (STEPS, PROMPT)
LOW = lowered(FORWARD)[:1]
"""The forward pass under autocast to bfloat16, for relations of the process and of earlier calls."""

ENTRIES = (FORWARD, GRADIENT, TRAINING, STEPS, PROMPT, PACKED)
"""The entries of relations that name none."""

PER_TOKEN = ("outputs", *(f"gradient of {name}" for name in INPUTS))
"""Names of the values with one row per sequence."""
