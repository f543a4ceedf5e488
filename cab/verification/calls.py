"""Determinism, state and call checks: a result depends on the module, its inputs and the seed alone."""

from __future__ import annotations

import functools
import itertools
import random
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cab.training import TrainableModule, auxiliary_loss
from cab.verification.check import Measurements, check
from cab.verification.compare import LEAK, ROUNDING, difference, gradient_floor
from cab.verification.decoding import decode
from cab.verification.inputs import Inputs, Module, outputs_and_gradients
from cab.verification.subject import Subject


@check("determinism", "relative error between two runs with one seed")
def same_seed(subject: Subject) -> Measurements:
    """Two modules built and run in training mode with the same seed give bit-identical outputs."""
    for length, dropout in ((17, 0.0), (65, 0.0), (33, subject.dropout), *((n, 0.0) for n in subject.long)):
        outputs = []
        for _ in range(2):
            module = subject.build_for(length, dropout=dropout, seed=5).train()
            inputs = subject.draw(module, length)
            torch.manual_seed(7)
            outputs.append(inputs.run(module))
        yield difference(outputs[0], outputs[1]), f"n={length}, dropout {dropout:g}"


@check("determinism", "relative error between two calls in evaluation mode")
def eval_repeatable(subject: Subject) -> Measurements:
    """In evaluation mode, repeated calls are bit-identical, whatever the state of the random number generator."""
    for length in (1, 17, 130, *subject.long):
        module = subject.build_for(length, dropout=0.5)
        inputs = subject.draw(module, length)
        with torch.no_grad():
            expected = inputs.run(module)
            torch.manual_seed(11)
            yield difference(inputs.run(module), expected), f"n={length}, dropout 0.5"


@check("determinism", "relative error after loading the state_dict into a new module")
def state_dict_complete(subject: Subject) -> Measurements:
    """After loading the state_dict, a module built with another seed gives the same output in evaluation mode."""
    for length, seed in ((17, 1), (65, 2), *((n, 3) for n in subject.long)):
        module = subject.build_for(length, seed=seed)
        inputs = subject.draw(module, length)
        with torch.no_grad():
            inputs.run(module)  # the state_dict includes what the first call creates
            expected = inputs.run(module)
            other = subject.build_for(length, seed=seed + 100)
            other.load_state_dict(module.state_dict())
            yield difference(inputs.run(other), expected), f"n={length}"


@check("determinism", "relative change of evaluation after calls in training mode")
def train_then_eval(subject: Subject) -> Measurements:
    """Forward passes in training mode do not change the output in evaluation mode."""
    for length in (33, *subject.long):
        module = subject.build_for(length, dropout=subject.dropout)
        inputs = subject.draw(module, length, batch=1 if length in subject.long else 2)
        with torch.no_grad():
            expected = inputs.run(module)
            for _ in range(2):
                inputs.run(module.train())
            yield difference(inputs.run(module.eval()), expected), f"n={length}"


@check("determinism", "relative change of an input")
def inputs_untouched(subject: Subject) -> Measurements:
    """No call modifies its inputs or masks."""
    for length in (33, *subject.long):
        for training in (False, True):
            module = subject.build_for(length).train(training)
            for inputs in (subject.draw(module, length), subject.pad(subject.draw(module, length, batch=3), "left")):
                originals = {name: x.clone() for name, x in inputs.given().items()}
                with torch.no_grad():
                    inputs.run(module)
                for name, x in inputs.given().items():
                    is_mask, original = x.dtype is torch.bool, originals[name]
                    changed = (x != original).float().mean() if is_mask else difference(x, original)
                    yield changed, f"n={length}, {name}, {'training' if training else 'evaluation'}"


@check("state", "modified random number generators")
def generators_untouched(subject: Subject) -> Measurements:
    """No call seeds a random number generator; only training mode draws, and only from torch's generator."""
    for length in (17, *subject.long):
        for training in (False, True):
            module = subject.build_for(length, dropout=subject.dropout).train(training)
            inputs = subject.draw(module, length, batch=1 if length in subject.long else 2)
            where = f"n={length}, {'training' if training else 'evaluation'}"
            torch_states = []
            for seed in (1, 2):
                torch.manual_seed(seed)
                states = _generators()
                with torch.no_grad():
                    inputs.run(module)
                new_states = _generators()
                allowed = {"torch"} if training else set()
                touched = [name for name in new_states if new_states[name] != states[name] and name not in allowed]
                yield len(touched), f"{where} ({', '.join(touched) or 'none'})"
                torch_states.append(new_states["torch"])
            yield float(torch_states[0] == torch_states[1]), f"{where}, seeded by the call"


@check("state", "relative change after an earlier batch")
def calls_leave_nothing(subject: Subject) -> Measurements:
    """No output depends on earlier batches, in training (forward and backward) or in evaluation."""
    cases = [(False, 0.0, 17), (True, subject.dropout, 17), *((True, 0.0, length) for length in subject.long)]
    for training, dropout, length in cases:
        used, fresh = (subject.build_for(length, dropout=dropout).train(training) for _ in range(2))
        batch = 1 if length in subject.long else 3
        for seed, layout in ((5, ""), (6, "left"))[:batch]:
            earlier = subject.draw(used, length, batch=batch, scale=3.0, seed=seed)
            earlier = subject.pad(earlier, layout) if layout else earlier
            earlier.requiring_grad().run(used).sum().backward()
        inputs = subject.draw(used, length, batch=batch)
        with torch.no_grad():
            error = difference(inputs.run(used, seed=1), inputs.run(fresh, seed=1))
        yield error, f"n={length}, {'training' if training else 'evaluation'}"


@check("state", "relative change caused by another module or a cache")
def modules_apart(subject: Subject) -> Measurements:
    """Modules of one class do not affect each other, and class-level caches can be cleared."""
    module = subject.build(seed=1)
    inputs = subject.draw(module, 17)
    with torch.no_grad():
        expected = inputs.run(module)
        for width in (32, 24):
            other = subject.build(seed=2, embed_dim=width)
            subject.draw(other, 29, seed=3, scale=2.0).run(other.train())
        yield difference(inputs.run(module), expected), "n=17, after another module was built and called"
        cleared = clear_tensor_caches(subject.cls)
        fresh = subject.build(seed=2)
        fresh.load_state_dict(module.state_dict())
        torch.manual_seed(7)
        error = difference(inputs.run(fresh), expected)
    yield error, f"n=17, with the same state_dict, after clearing caches {', '.join(cleared) or '(none)'}"


@check("state", "parameters without a gradient")
def parameters_learn(subject: Subject) -> Measurements:
    """Every parameter receives a gradient in training, from the output or an auxiliary loss."""
    missing = {n for n, p in subject.build().named_parameters() if p.requires_grad}
    lengths_tested: list[int] = []
    for length, layout in ((1, ""), (17, ""), (70, "right"), (700, "")):
        if not missing:
            break
        module = subject.build().train()
        inputs = subject.draw(module, length, batch=3)
        inputs = subject.pad(inputs, layout) if layout else inputs
        output, loss = inputs.run(module), auxiliary_loss(module)
        ((output * torch.randn_like(output))[inputs.real].sum() + (0.0 if loss is None else loss)).backward()
        missing -= {n for n, p in module.named_parameters() if p.grad is not None and bool(p.grad.any())}
        lengths_tested.append(length)
    yield len(missing), f"n={', '.join(map(str, lengths_tested))} ({', '.join(sorted(missing)) or 'none'})"


def clear_tensor_caches(cls: type[nn.Module]) -> list[str]:
    """Clear the tensor caches of a class and its module, which can be rebuilt, and return their names."""
    cleared = []
    for owner in (*user_classes(cls), *{sys.modules[c.__module__] for c in user_classes(cls)}):
        for name, kept in list(vars(owner).items()):
            if isinstance(kept, functools._lru_cache_wrapper):
                kept.cache_clear()
            elif isinstance(kept, dict | list | set) and any(isinstance(x, Tensor) for x in _items(kept)):
                kept.clear()
                cleared.append(name)
            elif isinstance(kept, Tensor) and isinstance(owner, type):
                setattr(owner, name, None)
                cleared.append(name)
    return cleared


def user_classes(cls: type[nn.Module]) -> list[type]:
    """Return the class and its bases outside torch and this package."""
    return [c for c in cls.__mro__ if c.__module__.partition(".")[0] not in ("torch", "builtins", "cab", "typing")]


def _items(kept: Any) -> Iterator[Any]:
    yield from kept.values() if isinstance(kept, dict) else kept


def _generators() -> dict[str, object]:
    """Return the states of the random number generators of the process."""
    numbers = np.random.get_state(legacy=True)
    return {
        "torch": bytes(torch.get_rng_state().numpy()),
        "numpy": (numbers[1].tobytes(), numbers[2]),  # type: ignore[index]
        "random": random.getstate(),
    }


CALLS, QUICK_CALLS = 200, 60
"""Numbers of small calls of one module in training mode, in the full and in the quick suite."""

THREADS = 4
DEPTH = 4
"""Levels of containers and objects that are searched for values that change."""


@check("calls", "relative error after many calls")
def many_calls(subject: Subject) -> Measurements:
    """After 220 calls in training and 100 in evaluation mode (quick: 80, 30), results are those of a new module."""
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
            yield difference(actual[name], x) if name in actual else torch.inf, f"{name}, n=33, {mode}"
    if subject.decodes:
        with torch.no_grad():
            decode(fresh, decoded, [1] * 9)
            for _ in range(20):
                outputs = decode(used, decoded, [1] * 9)
            yield difference(outputs, decode(fresh, decoded, [1] * 9)), "n=9, decoded 20 times"


@check("calls", "values that change with the number of calls")
def no_counters(subject: Subject) -> Measurements:
    """No value outside the state_dict changes when a call is repeated: no counter, no growing list or buffer."""
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

        snapshots = []
        for _ in range(3):
            call()
            snapshots.append(values_of(module))
        before, after = snapshots[1:]
        changed = [name for name in before | after if before.get(name) != after.get(name)]
        mode = "training" if training else "evaluation"
        yield len(changed), f"n=9, {mode} ({', '.join(changed[:4]) or 'none'})"


@check("calls", "relative error in or after inference mode")
def inference_mode(subject: Subject) -> Measurements:
    """In ``torch.inference_mode``, outputs are those of ``torch.no_grad``; a training step afterwards is correct."""
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
            for output, case, name in zip(outputs, (inputs, padded), ("", ", padding left"), strict=True):
                error = difference(output[case.real], case.run(fresh)[case.real])
                yield error, f"n={length}{name}, in inference mode"
        actual, expected = (
            outputs_and_gradients(module.train(), inputs, direction, seed=1) for module in (used, fresh)
        )
        for name, x in expected.items():
            error = difference(actual[name], x) if name in actual else torch.inf
            yield error, f"{name}, n={length}, training after inference mode"


@check("calls", "relative error between one thread and several", limit=ROUNDING)
def several_threads(subject: Subject) -> Measurements:
    """With several threads, outputs and gradients are those of one thread."""
    module = subject.build().train()
    inputs = subject.draw(module, 300, batch=3)
    direction = torch.randn_like(inputs.query)
    alone = outputs_and_gradients(module, inputs, direction, seed=1)
    with threads(THREADS):
        together = outputs_and_gradients(module, inputs, direction, seed=1)
    floor = gradient_floor(alone)
    for name, x in alone.items():
        error = difference(together[name], x, floor) if name in together else torch.inf
        yield error, f"{name}, n=300, {THREADS} threads"


@check("calls", "relative error, or outputs of another dtype", limit=LEAK)
def default_dtype(subject: Subject) -> Measurements:
    """With a default dtype of float64, a float32 module gives the same float32 outputs, also while decoding."""
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
    for output, reference, where in pairs:
        if output is not None and reference is not None:
            yield float(output.dtype != reference.dtype), f"{where} ({output.dtype})", 0.0
            yield difference(output, reference), where


def values_of(module: nn.Module) -> dict[str, object]:
    """Return the values, by place, of attributes outside the state_dict: of the module, its classes and their files."""
    saved = {id(x) for x in module.state_dict(keep_vars=True).values()}
    values: dict[str, object] = {}
    for path, submodule in module.named_modules():
        _collect(vars(submodule), path or type(submodule).__name__, saved, DEPTH, values)
    for cls in user_classes(type(module)):
        _collect(dict(vars(cls)), f"class {cls.__name__}", saved, DEPTH, values)
        _collect(vars(sys.modules[cls.__module__]), cls.__module__, saved, 2, values)
    return values


def _collect(value: object, path: str, saved: set[int], depth: int, values: dict[str, object]) -> None:
    """Add the values in ``value`` to ``values``, down to ``depth`` levels; modules and saved tensors are left out."""
    if id(value) in saved or isinstance(value, nn.Module | type):
        return
    if isinstance(value, Tensor):
        total = value.detach().double().sum().item() if value.dtype.is_floating_point else 0
        values[path] = (tuple(value.shape), total)
    elif isinstance(value, bool | int | float | str | itertools.count):
        values[path] = repr(value)
    elif isinstance(value, dict | list | tuple | set | deque):
        values[path] = len(value)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        if depth:
            for name, item in list(items):
                _collect(item, f"{path}.{name}", saved, depth - 1, values)
    elif depth and type(value).__module__ not in ("builtins", "torch") and hasattr(value, "__dict__"):
        _collect(vars(value), path, saved, depth - 1, values)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run the block with ``count`` threads of torch."""
    previous = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous)


@contextmanager
def default(dtype: torch.dtype) -> Iterator[None]:
    """Run the block with another default dtype."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(previous)
