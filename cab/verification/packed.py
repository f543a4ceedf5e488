"""Packed checks: sequences packed into one tensor give what each of them gives alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from cab.training import auxiliary_loss
from cab.verification.check import Measurements, check
from cab.verification.compare import ROUNDING, compared, difference, error_at, errors
from cab.verification.entries import initial_state
from cab.verification.inputs import Inputs, Module, gradients_of, leaves_of
from cab.verification.subject import Subject

Lengths = tuple[Sequence[int], Sequence[int]]
"""Numbers of targets and of source tokens of each sequence."""

EDGES: Lengths = (64, 63, 1, 0, 65, 128, 2), (63, 1, 64, 5, 128, 65, 0)
"""Lengths and borders (64, 127, 128) at the edges of blocks, single tokens, no target, no source."""

SHORT: Lengths = (64, 1, 0, 33, 2), (5, 64, 4, 1, 0)
UNEQUAL: Lengths = (600, 1, 0, 257, 64), (129, 64, 3, 1, 300)

PROMPTS, LONG_PROMPTS = ((0, 17, 1, 64), (5, 1, 0, 2)), ((64, 0, 128, 63), (65, 300, 1, 0))
"""Numbers of tokens of two consecutive prompts of each sequence."""


@dataclass(frozen=True)
class Packed:
    """Packed inputs [T, D] and [M, D] of sequences with the given numbers of targets and of source tokens."""

    inputs: Inputs
    lengths: Lengths

    @classmethod
    def draw(cls, subject: Subject, module: Module, lengths: Lengths) -> Packed:
        """Draw normal inputs that accumulate gradients."""
        return cls(subject.draw(module, sum(lengths[0]), sum(lengths[1]), batch=1).rows(0).requiring_grad(), lengths)

    def run(self, module: Module) -> Tensor:
        """Return the packed outputs [T, D]."""
        inputs = self.inputs
        lengths = {"query_cu_seqlens": cumulative(self.lengths[0], inputs.query)}
        if inputs.key is not None:
            lengths["key_cu_seqlens"] = cumulative(self.lengths[1], inputs.query)
        output = module.forward_packed(*inputs.tensors().values(), **lengths)
        if output.shape != inputs.query.shape:
            raise ValueError(f"packed output {list(output.shape)}, query {list(inputs.query.shape)}")
        return output

    def split(self, name: str, x: Tensor) -> tuple[Tensor, ...]:
        """Split a tensor like the input ``name`` into the sequences."""
        return x.split(list(self.lengths[0] if name == "query" else self.lengths[1]))

    def alone(self) -> dict[int, Inputs]:
        """Return the inputs of each sequence that has targets and source tokens, by its number."""
        sequences = zip(*(self.split(name, x) for name, x in self.inputs.tensors().items()), strict=True)
        return {n: Inputs(*(x[None] for x in one)) for n, one in enumerate(sequences) if all(map(len, one))}


def cumulative(lengths: Sequence[int], like: Tensor) -> Tensor:
    """Return the cumulative lengths [S + 1], as int32 on the device of ``like``."""
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=like.device)


packed_check = partial(check, "packed", applies=lambda s: hasattr(s.cls, "forward_packed"))


@packed_check("relative error of a packed sequence", limit=ROUNDING)
def packed_outputs(subject: Subject) -> Measurements:
    """Packed sequences, also empty ones, single tokens and edges of blocks, give the output of each sequence alone."""
    for lengths in (EDGES, UNEQUAL) if subject.long else (EDGES,):
        module = subject.build()
        packed = Packed.draw(subject, module, lengths)
        with torch.no_grad():
            output = packed.run(module)
            yield 0.0 if output.isfinite().all() else torch.inf, f"lengths {lengths[0]}, NaN or inf"
        measure, where = partial(sequence_errors, lengths=lengths), f"lengths {lengths[0]}"
        yield from compared(measure, module, packed.inputs, where, limit=subject.rounded())


@torch.no_grad()
def sequence_errors(module: Module, inputs: Inputs, *, lengths: Lengths) -> dict[str, Tensor]:
    """Return the error at every target of each sequence."""
    packed = Packed(inputs, lengths)
    together = packed.split("query", packed.run(module))
    return {f"sequence {n}": error_at(together[n], one.run(module)[0]) for n, one in packed.alone().items()}


@packed_check("relative error of packed sequences in training", limit=ROUNDING)
def packed_gradients(subject: Subject) -> Measurements:
    """Packed sequences give the outputs in training (if nothing is random) and the gradients of each sequence alone."""
    for lengths in (SHORT, EDGES) if subject.long else (SHORT,):
        module = subject.build().train(not subject.is_random_in_training)
        packed = Packed.draw(subject, module, lengths)
        alone = packed.alone()
        together = packed.split("query", packed.run(module))
        outputs = [together[n] for n in alone], [inputs.run(module)[0] for inputs in alone.values()]
        named = []
        for output in map(torch.cat, outputs):
            leaves = leaves_of(module, packed.inputs)
            gradients = gradients_of(output, leaves, _direction(output), retain_graph=True)
            named.append({"outputs": output} | {f"gradient of {name}": x for name, x in gradients.items()})
        yield from errors(named[0], named[1], f"lengths {lengths[0]}")


@packed_check("gradient with respect to a neighboring sequence")
def packed_borders(subject: Subject) -> Measurements:
    """In training mode, the gradient of a sequence's output with respect to its neighbors is exactly zero."""
    for lengths in (SHORT, EDGES) if subject.long else (SHORT,):
        module = subject.build(dropout=subject.dropout).train()
        packed = Packed.draw(subject, module, lengths)
        together = packed.split("query", packed.run(module))
        output = torch.cat(together[1::2])
        for name, gradient in gradients_of(output, packed.inputs.tensors(), _direction(output)).items():
            others = torch.cat(packed.split(name, gradient)[::2])
            yield others.abs().max(), f"sequences 1, 3, ... of lengths {lengths[0]}, {name}"


@packed_check(
    "relative error of the auxiliary loss",
    limit=ROUNDING,
    applies=lambda s: hasattr(s.cls, "forward_packed") and s.adds_loss and not s.is_random_in_training,
)
def packed_loss(subject: Subject) -> Measurements:
    """Packed sequences add the mean of the auxiliary losses of each one alone, weighted by numbers of targets."""
    for targets, sources in (EDGES, UNEQUAL) if subject.long else (EDGES,):
        lengths = targets, [max(1, count) for count in sources]  # the loss of a target without source is undefined
        module = subject.build().train()
        packed = Packed.draw(subject, module, lengths)
        packed.run(module)
        zero = packed.inputs.query.new_zeros(1)
        actual, expected = _loss(module, zero), zero
        for inputs in packed.alone().values():
            inputs.run(module)
            expected = expected + inputs.query.shape[1] / len(packed.inputs.query) * _loss(module, zero)
        yield difference(actual, expected), f"lengths {lengths[0]}"


@packed_check(
    "relative error of decoding after packed prompts",
    limit=lambda s: s.decode_tolerance,
    applies=lambda s: s.decodes and hasattr(s.cls, "prefill_packed"),
    declared_in="decode_tolerance",
)
def packed_prompts(subject: Subject) -> Measurements:
    """Two packed prompts, empty for some sequences, and steps give what forward gives for each sequence alone."""
    for prompts in (PROMPTS, LONG_PROMPTS) if subject.long else (PROMPTS,):
        module, inputs = subject.case(2, batch=len(prompts[0]))
        texts = [subject.draw(module, sum(n), batch=1, seed=2).query[0].split(list(n)) for n in prompts]
        with torch.no_grad():
            state, outputs = initial_state(module, inputs), []
            for text, lengths in zip(texts, prompts, strict=True):
                ends = cumulative(lengths, inputs.query)
                output, state = module.prefill_packed(torch.cat(text), state, query_cu_seqlens=ends)
                outputs.append(output.split(list(lengths)))
            for t in range(2):
                output, state = module.step(inputs.query[:, t], state)
                outputs.append(output.split(1))
            for row, together in enumerate(zip(*outputs, strict=True)):
                tokens = torch.cat([text[row] for text in texts] + [inputs.query[row]])
                expected = replace(inputs.rows(slice(row, row + 1)), query=tokens[None]).run(module)[0]
                where = " and ".join(str(lengths[row]) for lengths in prompts)
                yield difference(torch.cat(together), expected), f"prompts of {where} tokens, 2 steps"


def _loss(module: Module, zero: Tensor) -> Tensor:
    """Return the auxiliary loss of the last call, or ``zero`` [1]."""
    loss = auxiliary_loss(module)
    return zero if loss is None else loss[None]


def _direction(output: Tensor) -> Tensor:
    return torch.randn(output.shape, generator=torch.Generator().manual_seed(4)).to(output.device)
