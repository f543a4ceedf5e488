"""Determinism checks: equal seeds, modules and weights give bit-identical outputs."""

from __future__ import annotations

import torch

from cab.verification.check import Worst, check
from cab.verification.compare import difference
from cab.verification.subject import Subject


@check("determinism")
def same_seed(subject: Subject) -> Worst:
    """Two modules built and run in training mode with the same seed give bit-identical outputs."""
    worst = Worst("relative error between two runs with one seed", limit=0.0)
    for length, dropout in ((17, 0.0), (65, 0.0), (33, subject.dropout), *((n, 0.0) for n in subject.long)):
        outputs = []
        for _ in range(2):
            module = subject.build_for(length, dropout=dropout, seed=5).train()
            inputs = subject.draw(module, length)
            torch.manual_seed(7)
            outputs.append(inputs.run(module))
        worst.add(difference(outputs[0], outputs[1]), f"n={length}, dropout {dropout:g}")
    return worst


@check("determinism")
def eval_repeatable(subject: Subject) -> Worst:
    """In evaluation mode, repeated calls are bit-identical, whatever the state of the random number generator."""
    worst = Worst("relative error between two calls in evaluation mode", limit=0.0)
    for length in (1, 17, 130, *subject.long):
        module = subject.build_for(length, dropout=0.5)
        inputs = subject.draw(module, length)
        with torch.no_grad():
            first = inputs.run(module)
            torch.manual_seed(11)
            worst.add(difference(inputs.run(module), first), f"n={length}, dropout 0.5")
    return worst


@check("determinism")
def state_dict_complete(subject: Subject) -> Worst:
    """After loading the state_dict, a module built with another seed gives the same output in evaluation mode."""
    worst = Worst("relative error after loading the state_dict into a new module", limit=0.0)
    for length, seed in ((17, 1), (65, 2), *((n, 3) for n in subject.long)):
        module = subject.build_for(length, seed=seed)
        inputs = subject.draw(module, length)
        with torch.no_grad():
            inputs.run(module)  # the state_dict includes what the first call creates
            expected = inputs.run(module)
            other = subject.build_for(length, seed=seed + 100)
            other.load_state_dict(module.state_dict())
            worst.add(difference(inputs.run(other), expected), f"n={length}")
    return worst


@check("determinism")
def train_then_eval(subject: Subject) -> Worst:
    """Forward passes in training mode do not change the output in evaluation mode."""
    worst = Worst("relative change of evaluation after calls in training mode", limit=0.0)
    for length in (33, *subject.long):
        module = subject.build_for(length, dropout=subject.dropout)
        inputs = subject.draw(module, length, batch=1 if length in subject.long else 2)
        with torch.no_grad():
            before = inputs.run(module)
            for _ in range(2):
                inputs.run(module.train())
            worst.add(difference(inputs.run(module.eval()), before), f"n={length}")
    return worst


@check("determinism")
def inputs_untouched(subject: Subject) -> Worst:
    """No call modifies its inputs or masks."""
    worst = Worst("relative change of an input", limit=0.0)
    for length in (33, *subject.long):
        for training in (False, True):
            module = subject.build_for(length).train(training)
            for inputs in (subject.draw(module, length), subject.pad(subject.draw(module, length, batch=3), "left")):
                before = {name: x.clone() for name, x in inputs.given().items()}
                with torch.no_grad():
                    inputs.run(module)
                for name, x in inputs.given().items():
                    changed = (
                        (x != before[name]).float().mean() if x.dtype is torch.bool else difference(x, before[name])
                    )
                    worst.add(changed, f"n={length}, {name}, {'training' if training else 'evaluation'}")
    return worst
