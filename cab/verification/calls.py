"""Determinism, state and call checks: a result depends on the module, its inputs and the seed alone."""

from __future__ import annotations

import itertools
import traceback
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from cab.training import TrainableModule, auxiliary_loss
from cab.verification.check import Measurements, check
from cab.verification.compare import LEAK, ROUNDING, difference, errors
from cab.verification.decoding import decode
from cab.verification.inputs import Inputs, Module, copied, outputs_and_gradients
from cab.verification.mistakes import places
from cab.verification.side_effects import (
    changes_since,
    clear_tensor_caches,
    generators,
    read_settings,
    restored,
    values_of,
)
from cab.verification.subject import Subject

MODES = ("training", "evaluation")


@check("determinism", "relative change of an input")
def inputs_untouched(subject: Subject) -> Measurements:
    """No call modifies its inputs or masks."""
    for length, mode in itertools.product((33, *subject.long), MODES):
        module = subject.build_for(length).train(mode == "training")
        for inputs in (subject.draw(module, length), subject.draw(module, length, batch=3, padding="left")):
            originals = copied(inputs.arguments())
            with torch.no_grad():
                inputs.run(module)
            for name, x in inputs.arguments().items():
                change, finding = difference(x, originals[name]), f"forward writes into its input `{name}`"
                yield change, f"n={length}, {name}, {mode}", None, finding


@check("determinism", "changed settings")
def settings_untouched(subject: Subject) -> Measurements:
    """No constructor and no call changes a global setting of torch, such as the default dtype or the threads."""
    for mode in MODES:
        before = read_settings()
        module, inputs = subject.case(17, training=mode == "training", requires_grad=True)
        inputs.run(module).sum().backward()
        changes = changes_since(before)
        yield len(changes), f"n=17, {mode}", None, f"a call changes {' and '.join(changes)}"


@check("determinism", "modified random number generators")
def generators_untouched(subject: Subject) -> Measurements:
    """No call seeds a random number generator; only training mode draws, and only from torch's generator."""
    for length, mode in itertools.product((17, *subject.long), MODES):
        module, inputs = subject.case(length, dropout=subject.dropout, training=mode == "training")
        after = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            states = generators()
            with torch.no_grad(), _Draws() as draws:
                inputs.run(module)
            after.append(generators())
            permitted = ("torch",) if mode == "training" else ()
            touched = [name for name in states if after[-1][name] != states[name] and name not in permitted]
            finding = f"a call in {mode} draws random numbers of {', '.join(touched)}: {draws.first}"
            yield len(touched), f"n={length}, {mode}", None, finding
        yield float(after[0]["torch"] == after[1]["torch"]), f"n={length}, {mode}, seeded by the call"


@check("determinism", "relative error between two runs with one seed")
def same_seed(subject: Subject) -> Measurements:
    """Two modules built and run in training mode with the same seed give bit-identical outputs."""
    for length, dropout in ((17, 0.0), (65, 0.0), (33, subject.dropout), *((n, 0.0) for n in subject.long)):
        modules = [subject.build_for(length, dropout=dropout, seed=5).train() for _ in range(2)]
        one, other = (subject.draw(module, length).run(module, seed=7) for module in modules)
        yield difference(one, other), f"n={length}, dropout {dropout:g}"


@check("determinism", "relative error between two calls in evaluation mode")
def eval_repeatable(subject: Subject) -> Measurements:
    """In evaluation mode, repeated calls are bit-identical, whatever the state of the random number generator."""
    for length in (1, 17, 130, *subject.long):
        module, inputs = subject.case(length, dropout=0.5)
        with torch.no_grad():
            expected = inputs.run(module)
            yield difference(inputs.run(module, seed=11), expected), f"n={length}, dropout 0.5"


@check("determinism", "relative error after loading the state_dict into a new module")
def state_dict_complete(subject: Subject) -> Measurements:
    """After loading the state_dict, a module built with another seed gives the same output in evaluation mode."""
    for length, seed in ((17, 1), (65, 2), *((n, 3) for n in subject.long)):
        module, other = (subject.build_for(length, seed=seed + more) for more in (0, 100))
        inputs = subject.draw(module, length)
        with torch.no_grad():
            inputs.run(module)  # the state_dict includes what the first call creates
            expected = inputs.run(module)
            other.load_state_dict(module.state_dict())
            error = difference(inputs.run(other), expected)
        lost = values_of(module).items() - values_of(other).items() if error else ()
        names = ", ".join(sorted(name for name, _ in lost))
        finding = f"the state_dict lacks {names}: use self.register_buffer(name, tensor)" if lost else ""
        yield error, f"n={length}", None, finding


@check("determinism", "relative change of evaluation after calls in training mode")
def train_then_eval(subject: Subject) -> Measurements:
    """Forward passes in training mode do not change the output in evaluation mode."""
    for length in (33, *subject.long):
        module, inputs = subject.case(length, dropout=subject.dropout)
        with torch.no_grad():
            expected = inputs.run(module)
            for _ in range(2):
                inputs.run(module.train())
            yield difference(inputs.run(module.eval()), expected), f"n={length}"


@check("state", "relative change after an earlier batch")
def calls_leave_nothing(subject: Subject) -> Measurements:
    """No output depends on earlier batches, in training (forward and backward) or in evaluation."""
    long_cases = (("training", 0.0, length) for length in subject.long)
    for mode, dropout, length in (("evaluation", 0.0, 17), ("training", subject.dropout, 17), *long_cases):
        used, fresh = (subject.build_for(length, dropout=dropout).train(mode == "training") for _ in range(2))
        batch = 1 if length in subject.long else 3
        for seed, layout in ((5, ""), (6, "left"))[:batch]:
            earlier = subject.draw(used, length, batch=batch, scale=3.0, seed=seed, padding=layout)
            earlier.requiring_grad().run(used).sum().backward()
        inputs = subject.draw(used, length, batch=batch)
        with torch.no_grad():
            yield difference(inputs.run(used, seed=1), inputs.run(fresh, seed=1)), f"n={length}, {mode}"


@check("state", "relative change caused by another module or a cache")
def modules_apart(subject: Subject) -> Measurements:
    """Modules of one class do not affect each other, and class-level caches can be cleared."""
    module, inputs = subject.case(17, seed=1)
    with torch.no_grad():
        expected = inputs.run(module)
        for width in (32, 24):
            other = subject.build(seed=2, embed_dim=width)
            subject.draw(other, 29, seed=3, scale=2.0).run(other.train())
        yield difference(inputs.run(module), expected), "n=17, after another module was built and called"
        cleared = clear_tensor_caches(subject.cls)
        fresh = subject.build(seed=2)
        fresh.load_state_dict(module.state_dict())
        error = difference(inputs.run(fresh, seed=7), expected)
    yield error, f"n=17, with the same state_dict, after clearing caches {', '.join(cleared) or '(none)'}"


@check("state", "parameters without a gradient")
def parameters_learn(subject: Subject) -> Measurements:
    """Every parameter receives a gradient in training, from the output or an auxiliary loss."""
    missing = {n for n, p in subject.build().named_parameters() if p.requires_grad}
    tested = []
    for length, layout in ((1, ""), (17, ""), (70, "right"), (700, "")):
        if not missing:
            break
        module, inputs = subject.case(length, batch=3, padding=layout, training=True)
        output, loss = inputs.run(module), auxiliary_loss(module)
        ((output * torch.randn_like(output))[inputs.real].sum() + (0.0 if loss is None else loss)).backward()
        missing -= {n for n, p in module.named_parameters() if p.grad is not None and bool(p.grad.any())}
        tested.append(length)
    yield len(missing), f"n={', '.join(map(str, tested))} ({', '.join(sorted(missing)) or 'none'})"


@check("calls", "relative error after many calls")
def many_calls(subject: Subject) -> Measurements:
    """After 220 calls in training and 100 in evaluation mode (quick: 80, 30), results are those of a new module."""
    used, fresh = subject.build().train(), subject.build().train()
    tiny, small = subject.draw(used, 1, batch=1), subject.draw(used, 17, batch=1)
    inputs, decoded = subject.draw(used, 33), subject.draw(used, 9)
    calls = 200 if subject.long else 60
    for call in range(calls + 20):
        (tiny if call < calls else small).run(used)
        auxiliary_loss(used)
        if call == calls // 2:
            small.requiring_grad().run(used).sum().backward()
    with torch.no_grad():
        for _ in range(calls // 2):
            tiny.run(used.eval())
    for mode in MODES:
        for module in (used, fresh):
            module.train(mode == "training")
        yield from _errors_of(used, fresh, inputs, f"n=33, {mode}")
    if subject.decodes:
        with torch.no_grad():
            decode(fresh, decoded, [1] * 9)
            for _ in range(20):
                outputs = decode(used, decoded, [1] * 9)
            yield difference(outputs, decode(fresh, decoded, [1] * 9)), "n=9, decoded 20 times"


@check("calls", "values that change with the number of calls")
def no_counters(subject: Subject) -> Measurements:
    """No value outside the state_dict changes when a call is repeated: no counter, no growing list or buffer."""
    for mode in MODES:
        module, inputs = subject.case(9, training=mode == "training")
        snapshots = []
        for _ in range(3):
            inputs.requiring_grad().run(module, seed=1).sum().backward()
            module.zero_grad()
            auxiliary_loss(module)
            for learner in module.modules():
                if isinstance(learner, TrainableModule):
                    learner.pop_statistics()
            if subject.decodes and mode == "evaluation":
                with torch.no_grad():
                    decode(module, inputs, [1] * 9)
            snapshots.append(values_of(module))
        second, third = snapshots[1:]
        changed = [name for name in second | third if second.get(name) != third.get(name)]
        yield len(changed), f"n=9, {mode} ({', '.join(changed[:4]) or 'none'})"


@check("calls", "relative error in or after inference mode")
def inference_mode(subject: Subject) -> Measurements:
    """In ``torch.inference_mode``, outputs are those of ``torch.no_grad``; a training step afterwards is correct."""
    for length in (17, 130):
        used, fresh = subject.build(), subject.build()
        inputs, padded = subject.draw(used, length), subject.draw(used, length, batch=3, padding="left")
        with torch.inference_mode():
            outputs = [x.run(used).clone() for x in (inputs, padded)]
            if subject.decodes:
                decode(used, inputs.targets(0, 5), [1] * 5)
        with torch.no_grad():
            for output, case, name in zip(outputs, (inputs, padded), ("", ", padding left"), strict=True):
                error = difference(output[case.real], case.run(fresh)[case.real])
                yield error, f"n={length}{name}, in inference mode"
        yield from _errors_of(used.train(), fresh.train(), inputs, f"n={length}, training after inference mode")


@check("calls", "relative error between one thread and several", limit=ROUNDING)
def several_threads(subject: Subject) -> Measurements:
    """With several threads, outputs and gradients are those of one thread."""
    module, inputs = subject.case(300, batch=3, training=True)
    direction = torch.randn_like(inputs.query)
    alone = outputs_and_gradients(module, inputs, direction, seed=1)
    with restored():
        torch.set_num_threads(4)
        together = outputs_and_gradients(module, inputs, direction, seed=1)
    yield from errors(together, alone, "n=300, 4 threads")


@check("calls", "relative error, or outputs of another dtype", limit=LEAK)
def default_dtype(subject: Subject) -> Measurements:
    """With a default dtype of float64, a float32 module gives the same float32 outputs, also while decoding."""
    module = subject.build()
    inputs, padded = subject.draw(module, 33), subject.draw(module, 17, batch=3, padding="left")

    def outputs() -> dict[str, Tensor]:
        named = {"n=33": inputs.run(module), "n=17, padding left": padded.run(module)}
        return named | ({"n=9, decoded": decode(module, inputs.targets(0, 9), [1] * 9)} if subject.decodes else {})

    with torch.no_grad():
        expected = outputs()
        with restored():
            torch.set_default_dtype(torch.float64)
            actual = outputs()
    for where, output in actual.items():
        yield float(output.dtype != expected[where].dtype), f"{where} ({output.dtype})", 0.0
        yield difference(output, expected[where]), where


def _errors_of(used: Module, fresh: Module, inputs: Inputs, where: str) -> Measurements:
    """Yield the errors of outputs and gradients of ``used``."""
    direction = torch.ones_like(inputs.query)
    actual, expected = (outputs_and_gradients(module, inputs, direction, seed=1) for module in (used, fresh))
    return errors(actual, expected, where)


class _Draws(TorchFunctionMode):
    """Finds the first function that changes the state of torch's generator, and its line."""

    unknown = first = "not by a function of torch"

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = torch.get_rng_state()
        output = func(*args, **(kwargs or {}))
        if self.first is self.unknown and not torch.equal(before, torch.get_rng_state()):
            self.first = f"{func.__name__} ({places(traceback.extract_stack())})"
        return output
