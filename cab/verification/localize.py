"""The guilty submodule: after a failed check, the first whose outputs differ although its inputs agree.

An experiment runs a module twice, in ways that agree in some tokens or rows, and records inputs and outputs of every
submodule. Modules that pass are not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import is_dataclass, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cab.verification.compare import LEAK, ROUNDING
from cab.verification.entries import chunked, initial_state
from cab.verification.inputs import Inputs, Module, seed_torch
from cab.verification.subject import Subject

LENGTHS = (5, 19, 37, 67, 131, 263)
"""Lengths of experiments, which are no other size of a module under verification: they identify the token axis."""

GROWTH = 10.0
"""Factor by which the error of the guilty submodule exceeds that of its inputs: rounding errors grow in small steps."""

Tensors = dict[str, Tensor]

View = Callable[[Tensor, Tensor], tuple[Tensor, Tensor] | None]
"""A function from tensors of two runs to the parts that must agree, or None if they are not comparable."""


class Run(NamedTuple):
    """One call of a submodule; the whole module has no name."""

    name: str
    kind: str
    inputs: Tensors
    outputs: Tensors


Parts = list[tuple[list[Run], list[Run], View]]
"""Pairs of runs that must agree, in the order of time, and the view of each."""

Experiment = Iterator[tuple[Parts, float]]
"""Pairs of runs, and the largest error."""


def guilty(subject: Subject, group: str) -> str:
    """Return where the failure of a check in ``group`` starts; empty if unknown.

    Such as "layers.0.mamba (Zamba2MambaMixer), between act and norm".
    """
    key = (guilty, group)
    if key not in subject.shared:
        try:
            subject.shared[key] = next(filter(None, _faults(subject.for_check(long=False), group)), "")
        except Exception:  # of a module that has failed
            subject.shared[key] = ""
    return str(subject.shared[key])


@torch.no_grad()
def _faults(subject: Subject, group: str) -> Iterator[str]:
    for experiment in EXPERIMENTS.get(group, ()):
        for batch, scale, length in product((1, 2), (1.0, 4.0), LENGTHS):  # one row first: some modules merge rows
            module = subject.build()
            inputs = subject.draw(module, length, length + 40, batch=batch, scale=scale, seed=length)
            for parts, limit in experiment(subject, module, inputs):
                yield fault(parts, limit)


def fault(parts: Parts, limit: float) -> str:
    """Return the first submodule whose outputs differ although its inputs agree, if those of the whole differ."""
    matched = [(list(_matched(one, other)), view) for one, other, view in parts]
    whole_runs = [(a, b, view) for pairs, view in matched for a, b in pairs if not a.name]
    if not any((_error(a.outputs, b.outputs, view) or 0.0) > limit for a, b, view in whole_runs):
        return ""
    return next(filter(None, (_first_wrong(pairs, view, limit) for pairs, view in matched)), "")


def _first_wrong(pairs: list[tuple[Run, Run]], view: View, limit: float) -> str:
    seen: list[tuple[str, bool]] = []
    for a, b in pairs:
        error, before = _error(a.outputs, b.outputs, view), _error(a.inputs, b.inputs, view)
        if error is not None and before is not None and before <= limit < error and error > GROWTH * before:
            inside = f"{a.name}." if a.name else ""
            children = [(x.removeprefix(inside), is_right) for x, is_right in seen if x.startswith(inside)]
            start = next((i for i, (_, is_right) in enumerate(children) if not is_right), len(children))
            after, until = (children[i][0] if 0 <= i < len(children) else "" for i in (start - 1, start))
            place = f"between {after} and {until}" if after and until else f"after {after}" if after else ""
            place = place or (f"before {until}" if until else "")
            adapter, _, name = a.name.partition(".")
            name = name if adapter in ("model", "module") else a.name
            return ", ".join(filter(None, (f"{name} ({a.kind})" if name else a.kind, place)))
        if error is not None:
            seen.append((a.name, max(error, before or 0.0) <= limit))
    return ""


def _matched(one: list[Run], other: list[Run]) -> Iterator[tuple[Run, Run]]:
    """Yield the calls of two runs with the same name and number."""
    calls: dict[str, list[Run]] = {}
    for run in reversed(other):
        calls.setdefault(run.name, []).append(run)
    yield from ((run, calls[run.name].pop()) for run in one if calls.get(run.name))


def _error(one: Tensors, other: Tensors, view: View) -> float | None:
    """Return the largest error relative to the largest value of a tensor, or None if no tensors are comparable."""
    errors = []
    for a, b in filter(None, (view(one[name], other[name]) for name in one.keys() & other.keys())):
        size = a.double().abs().nan_to_num().amax().clamp_min(1e-12) if a.numel() else 1.0
        error = ((a.double() - b.double()).abs() / size).nan_to_num(nan=0.0)
        is_other = bool((a.isfinite() != b.isfinite()).any())
        errors.append(torch.inf if is_other else float(error.amax()) if a.numel() else 0.0)
    return max(errors, default=None)


def record(module: Module, inputs: Inputs, call: Callable[[], Tensor] | None = None, *, seed: int = 1) -> list[Run]:
    """Return the calls of submodules in the order in which they finish, and at last that of the module."""
    runs: list[Run] = []
    waiting: list[tuple[str, Tensors]] = []

    def before(name: str, _module: Any, arguments: Any, options: dict[str, Any]) -> None:
        options = {key: x for key, x in options.items() if "mask" not in key}  # masks of padding may differ
        waiting.append((name, _tensors([arguments, options])))

    def after(name: str, called: Any, _arguments: Any, _options: Any, output: Any) -> None:
        started = ""
        while started != name:  # calls that raised are still waiting
            started, read = waiting.pop()
        runs.append(Run(name, type(called).__name__, read, _tensors(output)))

    children = [(name, child) for name, child in module.named_modules() if name]
    hooks = [child.register_forward_pre_hook(partial(before, name), with_kwargs=True) for name, child in children]
    hooks += [child.register_forward_hook(partial(after, name), with_kwargs=True) for name, child in children]
    try:
        seed_torch(seed, inputs.query.device)
        output = call() if call else inputs.run(module)
    finally:
        for hook in hooks:
            hook.remove()
    return [*runs, Run("", type(module).__name__, inputs.tensors(), {"": output})]


def _tensors(value: Any, path: str = "") -> Tensors:
    """Return copies of the tensors in nested containers by place."""
    if isinstance(value, Tensor):
        return {path: value.detach().clone()}
    value = vars(value) if is_dataclass(value) and not isinstance(value, dict) else value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    return {place: x for key, item in items for place, x in _tensors(item, f"{path}.{key}").items()}


# --- views ---


def tokens(one: tuple[int, Tensor], other: tuple[int, Tensor], *, more: int = 4) -> View:
    """Return the view of tokens, by the length and the places in each run; convolutions add up to ``more`` tokens."""
    lengths, places = (one[0], other[0]), (one[1], other[1])
    longer = int(lengths[1] > lengths[0])
    sizes = range(lengths[longer], lengths[longer] + (more if lengths[longer] > 16 else 0) + 1)

    def view(*pair: Tensor) -> tuple[Tensor, Tensor] | None:
        axis = next((pair[longer].shape.index(n) for n in sizes if n in pair[longer].shape), None)
        if axis is None or pair[0].dim() != pair[1].dim():
            return None
        if pair[0].shape[axis] - lengths[0] != pair[1].shape[axis] - lengths[1]:
            return None
        a, b = (x.index_select(axis, place.to(x.device)) for x, place in zip(pair, places, strict=True))
        return (a, b) if a.shape == b.shape else None

    return view


def whole(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return tensors of one shape."""
    return (one, other) if one.shape == other.shape else None


def first_row(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the first of three rows, also where rows and tokens are one dimension."""
    is_part = one.dim() > 0 and other.shape == (3 * one.shape[0], *one.shape[1:])
    return (one, other[: one.shape[0]]) if is_part else None


# --- experiments ---


def later_tokens(_subject: Subject, module: Module, inputs: Inputs) -> Experiment:
    """Replace later tokens, in evaluation and in training."""
    n = inputs.query.shape[1]
    for training, start in ((False, n - 1), (False, n // 2), (True, n // 2)):
        module.train(training)
        query = inputs.query.clone()
        query[:, start:] = query[:, start:].flip(-1) * 3.0
        same = n, torch.arange(start)
        yield [(record(module, inputs), record(module, replace(inputs, query=query)), tokens(same, same))], LEAK


def prefixes(_subject: Subject, module: Module, inputs: Inputs) -> Experiment:
    """Run prefixes."""
    n = inputs.query.shape[1]
    for count in (n - 1, n // 2 + 1):
        view = tokens((count, torch.arange(count)), (n, torch.arange(count)))
        yield [(record(module, inputs.targets(0, count)), record(module, inputs), view)], ROUNDING


def padding(subject: Subject, module: Module, inputs: Inputs) -> Experiment:
    """Add padding."""
    rows, n, width = inputs.query.shape
    for side in (side for side in ("right", "left") if side in subject.padding_layouts):
        for value in (1.0, 1e4):
            places = torch.arange(n) + (3 if side == "left" else 0)
            mask = torch.ones(rows, n + 3, dtype=torch.bool).index_fill(1, places, value=False)
            query = torch.full((rows, n + 3, width), value).index_copy(1, places, inputs.query.cpu())
            padded = replace(inputs, query=query.to(inputs.query), query_padding=mask.to(inputs.query.device))
            view = tokens((n, torch.arange(n)), (n + 3, places))
            yield [(record(module, inputs), record(module, padded), view)], ROUNDING


def batches(_subject: Subject, module: Module, inputs: Inputs) -> Experiment:
    """Add rows."""
    rows = inputs.map(lambda x: torch.cat([x, x.flip(-1), 3.0 * x.flip(-1)]))
    yield [(record(module, inputs), record(module, rows), first_row)], ROUNDING


def repeats(_subject: Subject, module: Module, inputs: Inputs) -> Experiment:
    """Repeat a call after others, with another seed."""
    once = record(module, inputs)
    for other in (inputs, inputs.map(lambda x: x.flip(-1)), inputs.map(lambda x: x[:, : 1 + x.shape[1] // 2])):
        other.run(module)
        yield [(once, record(module, inputs, seed=2), whole)], 0.0


def decoding(subject: Subject, module: Module, inputs: Inputs) -> Experiment:
    """Read tokens in chunks, without padding and with padding in the prompt."""
    n = inputs.query.shape[1]
    plans = ([n - 2, 1, 1], chunked(n), [1] * n) if subject.prefills else ([1] * n,)
    layouts = [x for x in subject.prompt_padding_layouts or subject.padding_layouts if x in ("left", "right")]
    for layout, plan in [*(("", plan) for plan in plans), *((layout, plans[0]) for layout in layouts)]:
        real = torch.ones(n, dtype=torch.bool)
        real[0 if layout == "left" else n - 4 : 2 if layout == "left" else n - 2] = not layout
        mask = ~real.expand(len(inputs.query), -1).to(inputs.query.device)
        read = replace(inputs, query_padding=mask) if layout else inputs
        together, states, start = record(module, read), [initial_state(module, read)], 0
        parts: Parts = []
        for size in plan:
            part = read.targets(start, start + size)
            runs = record(module, part, partial(_read, module, part, states))
            places = real[start : start + size].nonzero()[:, 0]
            parts.append((together, runs, tokens((n, places + start), (size, places), more=0)))
            start += size
        yield parts, subject.decode_tolerance


def _read(module: Module, part: Inputs, states: list[Any]) -> Tensor:
    """Return the outputs of a chunk, and append the new state."""
    mask = {} if part.query_padding is None else {"query_padding_mask": part.query_padding}
    output, state = (module.step if part.query.shape[1] == 1 else module.prefill)(part.query, states[-1], **mask)
    states.append(state)
    return output


EXPERIMENTS: dict[str, tuple[Callable[..., Experiment], ...]] = {
    "determinism": (repeats,),
    "lengths": (repeats, padding, later_tokens, prefixes),
    "batches": (batches, repeats),
    "padding": (padding, batches),
    "causality": (later_tokens, prefixes),
    "decoding": (decoding,),
    "branching": (decoding,),
}
"""The experiments after a failed check, by its group."""
