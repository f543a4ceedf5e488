"""Training checks: auxiliary losses, buffers updated from statistics, and parameter group overrides."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from cab.padding import PaddingMasks
from cab.training import TrainableModule, after_optimizer_step, auxiliary_loss, parameter_groups, recompute
from cab.verification.causality import gradient_leak, replacement_leak
from cab.verification.check import Measurements, check
from cab.verification.compare import LEAK, ROUNDING
from cab.verification.entries import FORWARD, TRAINING, Call, Entry, Setup, Values, differentiate, random_direction
from cab.verification.inputs import LAYOUTS, Module, copied, rows_alone
from cab.verification.relation import Variant, Variants, relation, rows_of
from cab.verification.subject import Subject


def losses(module: Module, query: Tensor, *source: Tensor, **masks: Tensor) -> Tensor:
    """Return the auxiliary losses [B, N, 1] that a call of ``module`` adds for each target; a scalar is for each."""
    added = [(0.0 * query).sum(-1)]  # which has a gradient

    def record(add_loss: Callable[..., None], loss: Tensor, padding: PaddingMasks | None = None) -> None:
        if loss.dim() and loss.shape != query.shape[:2]:
            raise ValueError(f"a loss is a scalar or has shape {[*query.shape[:2]]}, got {[*loss.shape]}")
        added.append(loss)
        add_loss(loss, padding)

    with ExitStack() as stack:
        for learner in (m for m in module.modules() if isinstance(m, TrainableModule)):
            stack.enter_context(patch.object(learner, "add_loss", partial(record, learner.add_loss)))
        module(query, *source, **masks)
    if len(added) == 1 and (total := auxiliary_loss(module)) is not None:  # added in another way
        added.append(total)
    return sum(added[1:], added[0]).unsqueeze(-1)


LOSSES = Entry(
    "auxiliary losses in training mode",
    partial(differentiate, training=True, run=lambda inputs, module: inputs.run(partial(losses, module))),
    lambda subject: subject.adds_loss,
)

POISON = 100.0
"""Value of the padding."""

learning = partial(relation, "learning", limit=ROUNDING)


@learning(
    "relative dependence of a target's loss on later tokens",
    entries=(LOSSES,),
    setups=(Setup(2, 1), Setup(9, 1), Setup(33, 1, has_dropout=True)),
    limit=LEAK,
    applies=lambda s: s.pattern.is_causal and s.adds_loss,
    compares=False,
)
def loss_lookahead(call: Call) -> Variants:
    """No auxiliary loss of a target depends on tokens its output may not attend to (gradient and replacement)."""
    module, positions = partial(losses, call.in_mode(training=True)), torch.arange(call.setup.length)
    leaks = (
        gradient_leak(module, call.inputs, positions, "gradient"),
        replacement_leak(module, call.inputs, positions, 1.0, "replaced"),
    )
    for value, where, limit, finding in leaks:
        yield value, where, limit, f"the auxiliary loss of {finding}"


@learning("relative change of a loss with another sequence", entries=(LOSSES,), setups=(Setup(batch=3),), limit=LEAK)
def loss_number(call: Call) -> Variants:
    """Every auxiliary loss has one value per target, or is a scalar that depends only on parameters."""
    for number in range(2):
        equal, row = call.but(inputs=call.inputs.rows([number] * 3)), rows_of([number])
        how = f"among rows equal to row {number}"
        yield Variant(how, equal, row, row, explain=lambda: "a loss depends on other sequences of a batch")


@learning(entries=(TRAINING, LOSSES), setups=(Setup(batch=3, padding="left"),), applies=lambda s: s.learns)
def loss_once(call: Call, ignored: str = "statistics") -> Variants:
    """In training only, the auxiliary loss is returned once; recomputation neither drops nor doubles it."""

    def names(name: str) -> bool:
        return not name.startswith(ignored)

    def evaluated(x: Tensor) -> Tensor:
        call.run(FORWARD)
        return random_direction(x)

    def recomputing() -> Any:
        forward = call.module.forward
        return patch.object(call.module, "forward", lambda *x, **masks: recompute(partial(forward, **masks), *x))

    if call.entry is TRAINING:
        how = "with a call in evaluation mode before the backward pass"
        yield Variant(how, call.but(cotangent=evaluated), names=names)
        call.run()
        yield float(auxiliary_loss(call.module) is not None), "a second query", 0.0
    again = call.but(around=recomputing)
    yield Variant("recomputed in the backward pass", again, names=names)


@learning(entries=(TRAINING,), setups=(Setup(batch=3),), applies=lambda s: s.accumulates_statistics)
def statistics_once(call: Call) -> Variants:
    """Buffers are updated once per training pass, also under recomputation, not by evaluation, and are saved."""
    yield from loss_once(call, ignored="auxiliary loss")
    call.inputs.run(call.in_mode(training=True))
    after_optimizer_step(call.module)
    loaded = call.new_module(100)
    loaded.load_state_dict(call.module.state_dict())
    other = call.but(module=loaded)
    for entry in (TRAINING, FORWARD):
        base, how = call.run(entry), f"after loading the updated buffers ({entry.name})"
        yield Variant(how, other, values=other.run(entry), base=base)


def of_padding(call: Call, what: str) -> Variants:
    """Yield what a step learns from other padding, and from one pass per row without padding."""
    steps = {"": [call.inputs], "with other padding": [call.inputs.filled(lambda x: torch.full_like(x, POISON))]}
    if not call.is_random:
        steps["row by row"] = [row for _, row in rows_alone(call.inputs)]
    module, results = call.in_mode(training=True), dict[str, Values]()
    before = copied(module.state_dict())
    if what == "auxiliary loss" and call.setup.padding == "right":  # with other padding, a module may move targets
        with torch.no_grad():
            each = call.inputs.run(partial(losses, module), seed=call.seed)[call.inputs.real].mean()
        total = auxiliary_loss(module)
        values = {"auxiliary loss": (each if total is None else total).reshape(1, 1)}
        finding = "the auxiliary loss includes padding: pass its masks"
        base = {"auxiliary loss": each.reshape(1, 1)}
        yield Variant("of all targets", call, values=values, base=base, names=what.__eq__, explain=lambda: finding)
    for how, passes in steps.items():
        total = call.inputs.query.new_zeros(1, 1)
        with torch.no_grad():
            for inputs in passes:
                inputs.run(module, seed=call.seed)
                loss = auxiliary_loss(module)
                total += 0.0 if loss is None else loss * inputs.real.sum() / call.inputs.real.sum()
        after_optimizer_step(module)
        state = {f"updated buffer {n}": x.reshape(1, -1) for n, x in copied(module.state_dict()).items() if x.numel()}
        module.load_state_dict(before)
        results[how], says = {"auxiliary loss": total} | state, partial(str, f"the {what} differs {how}")
        yield Variant(
            how, call, values=results[how], base=results[""], names=lambda x: x.startswith(what), explain=says
        )


padded = partial(
    learning, entries=(TRAINING,), setups=[Setup(batch=5, padding=layout) for layout in LAYOUTS[:3]], compares=False
)
padded(
    name="loss_padding",
    summary="In a padded batch, the auxiliary loss is the mean over real targets; padding does not contribute.",
    applies=lambda s: s.adds_loss,
)(partial(of_padding, what="auxiliary loss"))
padded(
    name="statistics_padding",
    summary="Buffers updated from a padded batch equal those updated from its rows, one pass per row without padding.",
    applies=lambda s: s.accumulates_statistics,
)(partial(of_padding, what="updated buffer"))


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
