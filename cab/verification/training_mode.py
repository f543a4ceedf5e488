"""Training checks: training mode computes the function of evaluation mode, and gradients compose."""

from __future__ import annotations

import torch
from torch import Tensor

from cab.training import auxiliary_loss
from cab.verification.check import Worst, check
from cab.verification.compare import ROUNDING, difference, gradient_floor, limit_for
from cab.verification.inputs import Inputs, Module, outputs_and_gradients
from cab.verification.subject import Subject, rounding

LENGTHS = (17, 130)
MANY = (1, 3, 7, 61)
"""Numbers of sequences in the parts of a large batch."""


def is_fixed_in_training(subject: Subject) -> bool:
    """Return whether training mode draws no random numbers without dropout."""
    return not subject.is_random_in_training


@check("training_mode", applies=is_fixed_in_training, declared_in="differs_in_training")
def training_is_evaluation(subject: Subject) -> Worst:
    """Without dropout, training and evaluation mode, with and without autograd, give equal outputs and gradients."""
    allowed = bool(getattr(subject.cls, "differs_in_training", False))
    worst = Worst("relative error between training and evaluation mode", limit=torch.inf if allowed else ROUNDING)
    cases = [(1, ""), *((length, layout) for length in LENGTHS for layout in ("", "inside", "left"))]
    for length, layout in [*cases, *((n, "") for n in (600, *subject.long) if subject.long)]:
        module = subject.build_for(length)
        inputs = subject.draw(module, length, batch=3 if layout else 1)
        inputs = subject.pad(inputs, layout) if layout else inputs
        inputs = inputs.rows(slice(1, 2)) if layout == "left" else inputs  # a padded batch of one
        direction = torch.randn_like(inputs.query)
        evaluated, trained = (
            outputs_and_gradients(module.train(training), inputs, direction, seed=1) for training in (False, True)
        )
        auxiliary_loss(module)
        with torch.no_grad():
            trained["outputs without gradient"] = inputs.run(module.eval(), seed=1)[inputs.real]
        evaluated["outputs without gradient"] = evaluated["outputs"]
        limit = torch.inf if allowed else limit_for(rounding(module, inputs), ROUNDING)
        for name, error in _errors(trained, evaluated).items():
            worst.add(error, f"{name}, n={length}{f', padding {layout}' if layout else ''}", limit=limit)
    return worst


@check("training_mode")
def gradient_of_residual(subject: Subject) -> Worst:
    """Gradients of x + f(x) are the sums of both, and no backward pass modifies the gradient that it receives."""
    worst = Worst("relative error of the gradient", limit=ROUNDING)
    for length in (17, *subject.long):
        module = subject.build_for(length).train()
        inputs = subject.draw(module, length, batch=1 if length in subject.long else 2).requiring_grad()
        places = _places(module, inputs)
        direction = torch.randn_like(inputs.query)
        limit = limit_for(rounding(module, inputs), ROUNDING)
        output = inputs.run(module, seed=1)
        first, again = (_gradients(output, places, direction.clone(), retain=True) for _ in range(2))
        received = direction.clone()
        _gradients(output, places, received, retain=True)
        worst.add(difference(received, direction), f"n={length}, gradient passed to backward", limit=0.0)
        # The gradient of the sum is one tensor, which both branches receive.
        whole = _gradients(inputs.query + inputs.run(module, seed=1), places, received)
        swapped = _gradients(inputs.run(module, seed=1) + inputs.query, places, received)
        expected = first | {"query": first["query"] + direction}
        for name, error in _errors(again, first).items():
            worst.add(error, f"n={length}, gradient of {name}, second backward pass", limit=limit)
        for actual in (whole, swapped):
            for name, error in _errors(actual, expected).items():
                worst.add(error, f"n={length}, gradient of {name}, x + f(x)", limit=limit)
        auxiliary_loss(module)
    return worst


@check("training_mode")
def gradient_of_two_calls(subject: Subject) -> Worst:
    """Gradients of two calls before one backward pass, and with an evaluation call in between, are those of each."""
    worst = Worst("relative error of the sum of two gradients", limit=ROUNDING)
    module = subject.build().train()
    earlier = subject.pad(subject.draw(module, 17, batch=3), "left")
    later, other = subject.draw(module, 30, seed=2), subject.draw(module, 9, seed=3)
    directions = [torch.randn_like(x.query) for x in (earlier, later)]
    alone = [_summed(module, [x], [w]) for x, w in zip((earlier, later), directions, strict=True)]
    zero = torch.zeros((), device=subject.device)
    expected = {name: sum((x[name] for x in alone if name in x), start=zero) for name in alone[0] | alone[1]}
    limit = limit_for(rounding(module, later), ROUNDING)
    for how, between in (("one after the other", None), ("with a call in evaluation mode in between", other)):
        together = _summed(module, [earlier, later], directions, between)
        for name, error in _errors(together, expected).items():
            worst.add(error, f"n=17 and n=30, gradient of {name}, {how}", limit=limit)
    auxiliary_loss(module)
    return worst


@check("training_mode")
def gradient_of_many_rows(subject: Subject) -> Worst:
    """Gradients of a batch of 72 sequences are the sums of the gradients of its parts of 1, 3, 7 and 61."""
    worst = Worst("relative error of the gradient of a batch", limit=ROUNDING)
    module = subject.build().train(is_fixed_in_training(subject))
    for length in (5, 17) if subject.long else (9,):
        inputs = subject.draw(module, length, batch=sum(MANY))
        direction = torch.randn_like(inputs.query)
        limit = limit_for(rounding(module, inputs), ROUNDING)
        together = outputs_and_gradients(module, inputs, direction)
        parts, start = [], 0
        for rows in MANY:
            part = slice(start, start + rows)
            parts.append(outputs_and_gradients(module, inputs.rows(part), direction[part]))
            start += rows
        for name in together:
            is_per_row = name == "outputs" or name.removeprefix("gradient of ") in inputs.tensors()
            found = [x[name] for x in parts if name in x]
            parts_together = torch.cat(found) if is_per_row else torch.stack(found).sum(0)
            error = difference(together[name], parts_together, gradient_floor(together))
            worst.add(error, f"{name}, n={length}, {sum(MANY)} rows", limit=limit)
    auxiliary_loss(module)
    return worst


@check("training_mode", declared_in="unused_parameters")
def parameters_in_every_batch(subject: Subject) -> Worst:
    """Every parameter takes part in the backward pass at every length from 2, as distributed data parallel requires."""
    worst = Worst("parameters without a gradient", limit=0.0)
    allowed = tuple(getattr(subject.cls, "unused_parameters", ()))
    for length, layout in ((2, ""), (17, ""), (17, "left"), (70, ""), (300, "right")):
        module = subject.build().train()
        inputs = subject.draw(module, length, batch=3)
        inputs = subject.pad(inputs, layout) if layout else inputs
        output, own = inputs.requiring_grad().run(module), auxiliary_loss(module)
        (output.sum() + (0.0 if own is None else own)).backward()
        missing = [
            n for n, p in module.named_parameters() if p.requires_grad and p.grad is None and not n.startswith(allowed)
        ]
        where = f"n={length}{f', padding {layout}' if layout else ''} ({', '.join(missing) or 'none'})"
        worst.add(len(missing), where, finding=f"no gradient for {', '.join(missing)} at n={length}")
    return worst


def _errors(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """Return the error of each expected tensor; a missing gradient counts as zero."""
    floor, zero = gradient_floor(expected), torch.zeros(())
    errors = {name: difference(actual.get(name, zero.expand_as(x)), x, floor) for name, x in expected.items()}
    return errors | {f"{name} (unexpected)": float(x.any()) for name, x in actual.items() if name not in expected}


def _places(module: Module, inputs: Inputs) -> dict[str, Tensor]:
    named = {name: x for name, x in module.named_parameters() if x.requires_grad}
    return {**inputs.tensors(), **named}


def _gradients(
    output: Tensor, places: dict[str, Tensor], direction: Tensor, *, retain: bool = False
) -> dict[str, Tensor]:
    """Return the gradients of ``output`` in ``direction``, those of parameters as one row."""
    found = torch.autograd.grad(output, list(places.values()), direction, retain_graph=retain, allow_unused=True)
    pairs = zip(places, found, strict=True)
    return {name: x if x.dim() == 3 else x.reshape(1, -1) for name, x in pairs if x is not None}


def _summed(
    module: Module, calls: list[Inputs], directions: list[Tensor], between: Inputs | None = None
) -> dict[str, Tensor]:
    """Return the gradients of one backward pass after all calls, with equal random numbers in each."""
    module.train().zero_grad()
    calls, outputs = [inputs.requiring_grad() for inputs in calls], []
    for index, inputs in enumerate(calls):
        outputs.append(inputs.run(module, seed=inputs.query.shape[1])[inputs.real])
        if between is not None and index == 0:
            with torch.no_grad():
                between.run(module.eval())
            module.train()
    losses = [(output * w[x.real]).sum() for output, w, x in zip(outputs, directions, calls, strict=True)]
    torch.stack(losses).sum().backward()
    gradients = {f"{name}, n={x.query.shape[1]}": y.grad for x in calls for name, y in x.tensors().items()}
    gradients |= {name: None if x.grad is None else x.grad.reshape(1, -1) for name, x in module.named_parameters()}
    return {name: x.clone() for name, x in gradients.items() if x is not None}
