"""Call checks: no result depends on the number of calls, on inference mode, on threads or on the default dtype."""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from cab.training import TrainableModule, auxiliary_loss
from cab.verification.check import Worst, check
from cab.verification.compare import LEAK, ROUNDING, difference, gradient_floor
from cab.verification.decoding import decode
from cab.verification.inputs import Inputs, Module, outputs_and_gradients
from cab.verification.state import own_classes
from cab.verification.subject import Subject

CALLS, QUICK_CALLS = 200, 60
"""Numbers of small calls of one module in training mode, in the full and in the quick suite."""

THREADS = 4
DEPTH = 4
"""Levels of containers and objects that are searched for values that change."""


@check("calls")
def many_calls(subject: Subject) -> Worst:
    """After 220 calls in training and 100 in evaluation mode (quick: 80, 30), results are those of a new module."""
    worst = Worst("relative error after many calls", limit=0.0)
    used, fresh = subject.build().train(), subject.build().train()
    tiny, small = subject.draw(used, 1, batch=1), subject.draw(used, 17, batch=1)
    inputs, decoded = subject.draw(used, 33), subject.draw(used, 9)
    calls = CALLS if subject.long else QUICK_CALLS
    for call in range(calls + 20):
        (tiny if call < calls else small).run(used)
        auxiliary_loss(used)
        if call == calls // 2:
            small.requiring_grad().run(used).sum().backward()
    with torch.no_grad():
        for _ in range(calls // 2):
            tiny.run(used.eval())
    for training in (True, False):
        mode = "training" if training else "evaluation"
        direction = torch.ones_like(inputs.query)
        actual, expected = (
            outputs_and_gradients(module.train(training), inputs, direction, seed=1) for module in (used, fresh)
        )
        for name, x in expected.items():
            worst.add(difference(actual[name], x) if name in actual else torch.inf, f"{name}, n=33, {mode}")
    if subject.decodes:
        with torch.no_grad():
            decode(fresh, decoded, [1] * 9)
            for _ in range(20):
                outputs = decode(used, decoded, [1] * 9)
            worst.add(difference(outputs, decode(fresh, decoded, [1] * 9)), "n=9, decoded 20 times")
    return worst


@check("calls")
def no_counters(subject: Subject) -> Worst:
    """No value outside the state_dict changes when a call is repeated: no counter, no growing list or buffer."""
    worst = Worst("values that change with the number of calls", limit=0.0)
    for training in (True, False):
        module = subject.build().train(training)
        inputs = subject.draw(module, 9)

        def call(module: Module = module, inputs: Inputs = inputs) -> None:
            inputs.requiring_grad().run(module, seed=1).sum().backward()
            module.zero_grad()
            auxiliary_loss(module)
            for learner in module.modules():
                if isinstance(learner, TrainableModule):
                    learner.pop_statistics()
            if subject.decodes and not module.training:
                with torch.no_grad():
                    decode(module, inputs, [1] * 9)

        found = []
        for _ in range(3):
            call()
            found.append(values_of(module))
        before, after = found[1:]
        changed = [name for name in before | after if before.get(name) != after.get(name)]
        mode = "training" if training else "evaluation"
        worst.add(len(changed), f"n=9, {mode} ({', '.join(changed[:4]) or 'none'})")
    return worst


@check("calls")
def inference_mode(subject: Subject) -> Worst:
    """In ``torch.inference_mode``, outputs are those of ``torch.no_grad``; a training step afterwards is correct."""
    worst = Worst("relative error in or after inference mode", limit=0.0)
    for length in (17, 130):
        used, fresh = subject.build(), subject.build()
        inputs = subject.draw(used, length)
        padded = subject.pad(subject.draw(used, length, batch=3), "left")
        with torch.inference_mode():
            outputs = [x.run(used).clone() for x in (inputs, padded)]
            if subject.decodes:
                decode(used, inputs.prefix(5), [1] * 5)
        direction = torch.ones_like(inputs.query)
        with torch.no_grad():
            for output, given, name in zip(outputs, (inputs, padded), ("", ", padding left"), strict=True):
                error = difference(output[given.real], given.run(fresh)[given.real])
                worst.add(error, f"n={length}{name}, in inference mode")
        actual, expected = (
            outputs_and_gradients(module.train(), inputs, direction, seed=1) for module in (used, fresh)
        )
        for name, x in expected.items():
            error = difference(actual[name], x) if name in actual else torch.inf
            worst.add(error, f"{name}, n={length}, training after inference mode")
    return worst


@check("calls")
def several_threads(subject: Subject) -> Worst:
    """With several threads, outputs and gradients are those of one thread."""
    worst = Worst("relative error between one thread and several", limit=ROUNDING)
    module = subject.build().train()
    inputs = subject.draw(module, 300, batch=3)
    direction = torch.randn_like(inputs.query)
    alone = outputs_and_gradients(module, inputs, direction, seed=1)
    with threads(THREADS):
        together = outputs_and_gradients(module, inputs, direction, seed=1)
    floor = gradient_floor(alone)
    for name, x in alone.items():
        error = difference(together[name], x, floor) if name in together else torch.inf
        worst.add(error, f"{name}, n=300, {THREADS} threads")
    return worst


@check("calls")
def default_dtype(subject: Subject) -> Worst:
    """With a default dtype of float64, a float32 module gives the same float32 outputs, also while decoding."""
    worst = Worst("relative error, or outputs of another dtype", limit=LEAK)
    module = subject.build()
    inputs = subject.draw(module, 33)
    padded = subject.pad(subject.draw(module, 17, batch=3), "left")
    with torch.no_grad():
        expected = [x.run(module) for x in (inputs, padded)]
        decoded = decode(module, inputs.prefix(9), [1] * 9) if subject.decodes else None
        with default(torch.float64):
            outputs = [x.run(module) for x in (inputs, padded)]
            stepped = decode(module, inputs.prefix(9), [1] * 9) if subject.decodes else None
    pairs = zip((*outputs, stepped), (*expected, decoded), ("n=33", "n=17, padding left", "n=9, decoded"), strict=True)
    for output, known, where in pairs:
        if output is not None and known is not None:
            worst.add(float(output.dtype != known.dtype), f"{where} ({output.dtype})", limit=0.0)
            worst.add(difference(output, known), where)
    return worst


def values_of(module: nn.Module) -> dict[str, object]:
    """Return the values, by place, of attributes outside the state_dict: of the module, its classes and their files."""
    saved = {id(x) for x in module.state_dict(keep_vars=True).values()}
    found: dict[str, object] = {}
    for path, part in module.named_modules():
        _collect(vars(part), path or type(part).__name__, saved, DEPTH, found)
    for cls in own_classes(type(module)):
        _collect(dict(vars(cls)), f"class {cls.__name__}", saved, DEPTH, found)
        _collect(vars(sys.modules[cls.__module__]), cls.__module__, saved, 2, found)
    return found


def _collect(value: object, path: str, saved: set[int], depth: int, found: dict[str, object]) -> None:
    """Add the values in ``value`` to ``found``, down to ``depth`` levels; modules and saved tensors are left out."""
    if id(value) in saved or isinstance(value, nn.Module | type):
        return
    if isinstance(value, Tensor):
        found[path] = (tuple(value.shape), value.detach().double().sum().item() if value.dtype.is_floating_point else 0)
    elif isinstance(value, bool | int | float | str | itertools.count):
        found[path] = repr(value)
    elif isinstance(value, dict | list | tuple | set | deque):
        found[path] = len(value)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        if depth:
            for name, item in list(items):
                _collect(item, f"{path}.{name}", saved, depth - 1, found)
    elif depth and type(value).__module__ not in ("builtins", "torch") and hasattr(value, "__dict__"):
        _collect(vars(value), path, saved, depth - 1, found)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run the block with ``count`` threads of torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def default(dtype: torch.dtype) -> Iterator[None]:
    """Run the block with another default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
