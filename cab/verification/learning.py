"""Training checks: auxiliary losses, buffers updated from statistics, and parameter group overrides."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from cab.padding import PaddingMasks
from cab.training import TrainableModule, after_optimizer_step, auxiliary_loss, parameter_groups, recompute
from cab.verification.check import Measurements, check
from cab.verification.compare import LEAK, ROUNDING, difference, errors
from cab.verification.inputs import LAYOUTS, Inputs, Module, copied, rows_alone, with_padding
from cab.verification.subject import Subject

SEED = 5
POISON = 100.0
"""Value of the padding."""

loss_check = partial(check, "learning", applies=lambda s: s.adds_loss)
statistics_check = partial(
    check,
    "learning",
    "relative error of the updated buffers",
    limit=ROUNDING,
    applies=lambda s: s.accumulates_statistics,
)


@loss_check(
    "relative dependence of a target's loss on later tokens",
    limit=LEAK,
    applies=lambda s: s.pattern.is_causal and s.adds_loss,
)
def loss_lookahead(subject: Subject) -> Measurements:
    """No auxiliary loss of a target depends on tokens its output may not attend to (gradient and replacement)."""
    for length, dropout in ((2, 0.0), (9, 0.0), (45, subject.dropout)):
        module, inputs = subject.case(length, batch=1, dropout=dropout, training=True)
        rows = inputs.repeated(length).requiring_grad()
        later = torch.ones(length, length, dtype=torch.bool, device=rows.query.device).triu(1)
        changed = torch.where(later[..., None], torch.randn_like(rows.query), rows.query)
        losses, moved_losses = (losses_of_targets(module, x) for x in (rows, replace(rows, query=changed)))
        for loss, other in zip(losses, moved_losses, strict=True):
            (gradient,) = torch.autograd.grad(
                loss.diagonal().sum(), rows.query, retain_graph=True, materialize_grads=True
            )
            size = gradient.norm(dim=-1)
            leak = size.where(later, 0.0).max() / size.max().clamp_min(1e-30)
            yield leak, f"n={length}, dropout {dropout:g}, gradient"
            moved = (other - loss).abs().where(~later, 0.0).max() / loss.abs().mean().clamp_min(1e-30)
            yield moved.detach(), f"n={length}, dropout {dropout:g}, later tokens replaced"
        yield 0.0, f"n={length}, {len(losses)} losses of targets"


@loss_check("relative dependence of a scalar loss on the inputs", limit=LEAK)
def loss_number(subject: Subject) -> Measurements:
    """Every auxiliary loss has one value per target, or is a scalar that depends only on parameters."""
    module, inputs = subject.case(17, batch=3, training=True, requires_grad=True)
    other = subject.draw(module, 17, batch=3, seed=2, scale=2.0)
    scalars = []
    for x in (inputs, other):
        losses, total = recorded_losses(module, x)
        numbers = [loss for loss, _ in losses if loss.dim() == 0]
        scalars.append(numbers or ([] if losses or total is None else [total]))
    for number, moved in zip(*scalars, strict=True):
        size = number.detach().abs().clamp_min(1e-30)
        yield (moved - number).abs().detach() / size, "n=17, other inputs"
        if number.requires_grad:
            gradients = torch.autograd.grad(number, [*inputs.tensors().values()], allow_unused=True)
            yield sum(float(g.abs().sum()) for g in gradients if g is not None), "n=17, gradient"
    yield 0.0, f"n=17, {len(scalars[0])} scalar losses"


@loss_check("relative error between the loss of a padded batch and of its rows", limit=ROUNDING)
def loss_padding(subject: Subject) -> Measurements:
    """In a padded batch, the auxiliary loss is the mean over real targets; padding does not contribute."""
    for layout in LAYOUTS[:3]:
        module, inputs = subject.case(17, batch=5, padding=layout, training=True)
        total, poisoned = added_loss(module, inputs), added_loss(module, inputs.filled(_poison))
        yield relative(poisoned, total), f"n=17, padding {layout} with value {POISON:g}"
        losses, _ = recorded_losses(module, inputs)
        unmasked = sum(loss.dim() > 0 and (padding is None or padding.query is None) for loss, padding in losses)
        yield unmasked, f"n=17, padding {layout}, per-target losses added without their padding mask", 0.0
        if not subject.is_random_in_training:
            alone = sum(added_loss(module, row) * row.query.shape[1] for _, row in rows_alone(inputs))
            yield relative(total, alone / float(inputs.real.sum())), f"n=17, padding {layout}, rows alone"


@check("learning", "unexpected or missing losses", applies=lambda s: s.learns)
def loss_once(subject: Subject) -> Measurements:
    """In training only, the auxiliary loss is returned once; recomputation neither drops nor doubles it."""
    module, inputs = subject.case(17)
    inputs.run(module)
    yield float(auxiliary_loss(module) is not None), "n=17, in evaluation"
    inputs.run(module.train())
    auxiliary_loss(module)
    yield float(auxiliary_loss(module) is not None), "n=17, queried twice"
    losses, gradients = [], []
    for recomputes in (False, True):
        module, inputs = subject.case(17, batch=3, padding="right", training=True, requires_grad=True)
        direction = torch.linspace(-1.0, 1.0, inputs.query.numel()).view_as(inputs.query).to(inputs.query.device)
        output = _run(module, inputs, recomputes=recomputes, seed=SEED)
        loss = auxiliary_loss(module)
        losses.append(math.nan if loss is None else loss.item())
        ((output * direction).sum() + (0.0 if loss is None else loss)).backward()
        gradients.append({n: p.grad.reshape(1, -1) for n, p in module.named_parameters() if p.grad is not None})
    yield float(auxiliary_loss(module) is not None), "n=17, left after recomputation"
    if any(map(math.isnan, losses)):
        yield float(not all(map(math.isnan, losses))), "n=17, under recomputation"
    else:
        yield relative(losses[1], losses[0]), "n=17, value under recomputation", ROUNDING
    yield from errors(gradients[1], gradients[0], "n=17, gradient under recomputation", ROUNDING)


@statistics_check()
def statistics_once(subject: Subject) -> Measurements:
    """Buffers are updated once per training pass, also under recomputation, not by evaluation, and are saved."""
    module, expected = updated(subject)
    yield from entry_errors(updated(subject, recomputes=True)[1], expected, "n=33, recomputed")
    yield from entry_errors(updated(subject, evaluates=True)[1], expected, "n=33, after an evaluation call")
    fresh = subject.build(seed=100)
    fresh.load_state_dict(module.state_dict())
    inputs = subject.draw(module, 17)
    with torch.no_grad():
        yield difference(inputs.run(fresh), inputs.run(module)), "n=17, output after loading the state_dict"


def updated(subject: Subject, *, recomputes: bool = False, evaluates: bool = False) -> tuple[Module, dict[str, Tensor]]:
    """Return a module after one training step, and its state_dict together with the accumulated statistics."""
    module, inputs = subject.case(33, batch=3, training=True, requires_grad=True)
    _run(module, inputs, recomputes=recomputes).sum().backward()
    if evaluates:
        subject.draw(module, 19, seed=9).run(module.eval())
    gathered: dict[str, Tensor] = {}
    for path, learner in module.named_modules():
        statistics = learner.pop_statistics() if isinstance(learner, TrainableModule) else {}
        gathered |= {f"{path}.{name} (accumulated)": x.clone() for name, x in statistics.items()}
        if statistics:
            with torch.no_grad():
                learner.update_buffers(**statistics)
    return module.eval(), copied(module.state_dict()) | gathered


@statistics_check()
def statistics_padding(subject: Subject) -> Measurements:
    """Buffers updated from a padded batch equal those updated from its rows, one pass per row without padding."""
    for layout in LAYOUTS[:3]:
        together, apart, filled = (subject.build().train() for _ in range(3))
        inputs = with_padding(subject.draw(together, 17, batch=5), layout)
        inputs.run(together, seed=SEED)
        inputs.filled(_poison).run(filled, seed=SEED)
        for _, alone in rows_alone(inputs):
            alone.run(apart, seed=SEED)
        for module in (together, apart, filled):
            after_optimizer_step(module)
        buffers = together.state_dict()
        yield from entry_errors(filled.state_dict(), buffers, f"n=17, padding {layout} with value {POISON:g}")
        if not subject.is_random_in_training:
            yield from entry_errors(apart.state_dict(), buffers, f"n=17, padding {layout}, row by row")


@check("learning", "invalid parameter groups", applies=lambda s: s.learns)
def param_group_overrides(subject: Subject) -> Measurements:
    """Parameter group overrides refer to existing parameters, with finite non-negative rates and weight decays."""
    module = subject.build()
    groups = parameter_groups(module, learning_rate=1e-3, weight_decay=1e-2)
    for group in groups:
        for name in ("lr", "weight_decay"):
            is_sound = math.isfinite(group[name]) and group[name] >= 0.0
            yield float(not is_sound), f"{name} {group[name]:g} of {len(group['params'])} parameters"
    covered = [id(parameter) for group in groups for parameter in group["params"]]
    yield len(set(covered) ^ {id(p) for p in module.parameters()}), f"{len(covered)} parameters in groups"


# --- measurements ----------------------------------------------------------------------------------------------------


def recorded_losses(module: Module, inputs: Inputs) -> tuple[list[tuple[Tensor, PaddingMasks | None]], Tensor | None]:
    """Return the arguments of every ``add_loss`` in one call with a fixed seed, and the auxiliary loss."""
    losses: list[tuple[Tensor, PaddingMasks | None]] = []
    learners = [m for m in module.modules() if isinstance(m, TrainableModule)]
    for learner in learners:

        def record(loss: Tensor, padding: PaddingMasks | None = None, *, learner: TrainableModule = learner) -> None:
            losses.append((loss, padding))
            type(learner).add_loss(learner, loss, padding)

        learner.__dict__["add_loss"] = record
    inputs.run(module, seed=SEED)
    for learner in learners:
        del learner.__dict__["add_loss"]
    return losses, auxiliary_loss(module)


def losses_of_targets(module: Module, inputs: Inputs) -> list[Tensor]:
    """Return the per-target losses [B, N] of one call in training mode; ValueError for a loss of another shape."""
    losses = [loss for loss, _ in recorded_losses(module, inputs)[0] if loss.dim()]
    for loss in losses:
        if loss.shape != inputs.query.shape[:2]:
            raise ValueError(f"a loss is a scalar or has shape {[*inputs.query.shape[:2]]}, got {[*loss.shape]}")
    return losses


def added_loss(module: Module, inputs: Inputs) -> float:
    """Return the auxiliary loss of one call in training mode, or zero without one."""
    with torch.no_grad():
        inputs.run(module, seed=SEED)
    loss = auxiliary_loss(module)
    return 0.0 if loss is None else loss.item()


def relative(actual: float, expected: float) -> float:
    """Return the relative error of ``actual``."""
    return abs(actual - expected) / max(abs(expected), 1e-30) if actual != expected else 0.0


def entry_errors(actual: dict[str, Tensor], expected: dict[str, Tensor], where: str) -> Measurements:
    """Yield the relative error of every entry of a state_dict."""
    for name, x in expected.items():
        yield difference(actual[name].double().reshape(1, -1), x.double().reshape(1, -1)), f"{where}, {name}"


def _poison(x: Tensor) -> Tensor:
    return torch.full_like(x, POISON)


def _run(module: Module, inputs: Inputs, *, recomputes: bool, seed: int | None = None) -> Tensor:
    """Return the output, with recomputation of the activations in the backward pass if ``recomputes``."""
    if recomputes:
        return recompute(lambda *_: inputs.run(module, seed=seed), inputs.query)
    return inputs.run(module, seed=seed)
