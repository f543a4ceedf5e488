"""Training checks: training mode computes the function of evaluation mode; gradients compose; dropout has its rate."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import replace

import torch
from torch import Tensor

from cab.training import TrainableModule, auxiliary_loss
from cab.verification.check import Measurements, check
from cab.verification.compare import ROUNDING, difference, errors
from cab.verification.entries import FORWARD, GRADIENT, LONGEST, TRAINING, Call, Setup, decode, random_direction
from cab.verification.inputs import INPUTS, Inputs, Module, gradients_of, leaves_of, outputs_and_gradients
from cab.verification.relation import Variant, Variants, plain_values, relation
from cab.verification.side_effects import values_of
from cab.verification.subject import Subject

SMALL = Setup(9)
SECOND = 1e-2
"""Limit between a second derivative and a difference quotient."""

MANY = (1, 3, 7, 61)
"""Numbers of sequences in the parts of a large batch."""


@relation(
    "training_mode",
    "relative error between training and evaluation mode",
    entries=(TRAINING, FORWARD),
    against=GRADIENT,
    setups=(
        Setup(1),
        Setup(17),
        Setup(17, batch=3, padding="left"),
        Setup(130),
        Setup(130, batch=3, padding="inside"),
        Setup(600, is_full=True),
        Setup(LONGEST),
    ),
    limit=ROUNDING,
    applies=lambda s: not s.is_random_in_training,
)
def training_is_evaluation(call: Call) -> Variants:
    """Without dropout, training and evaluation mode, with and without autograd, give equal outputs and gradients."""
    yield Variant("", call, names="outputs".__eq__ if call.entry is FORWARD else lambda _: True)


@relation(
    "training_mode",
    "relative error of the gradient",
    entries=(GRADIENT, TRAINING),
    setups=(SMALL, Setup(batch=3)),
    limit=ROUNDING,
)
def cotangents(call: Call) -> Variants:
    """Gradients are linear in the gradient that they receive, whatever its scale and layout, and do not modify it."""
    if call.entry is TRAINING and call.subject.is_random_in_training:
        return
    for scale in (1e-6, 1e5):
        scaled = call.but(cotangent=lambda x, scale=scale: scale * random_direction(x))
        yield Variant(f"of a gradient x{scale:g}", scaled, factor=scale)
    transposed = lambda x: random_direction(x).transpose(0, 1).contiguous().transpose(0, 1)  # noqa: E731
    yield Variant("of a transposed gradient", call.but(cotangent=transposed))
    ones = call.but(cotangent=lambda x: torch.ones(1, 1, 1).expand_as(x)), call.but(cotangent=torch.ones_like)
    yield Variant("of an expanded gradient", ones[0], base=ones[1].run())


@relation(
    "training_mode", "relative error of the gradient", entries=(GRADIENT, TRAINING), setups=(SMALL,), limit=ROUNDING
)
def frozen_leaves(call: Call) -> Variants:
    """Gradients of some inputs and parameters do not depend on whether the others need one."""
    if call.entry is TRAINING and call.subject.is_random_in_training:
        return
    parameters = {name: x for name, x in call.module.named_parameters() if x.requires_grad}
    inputs = tuple(call.inputs.tensors())
    subsets = {"only parameters": parameters, "only inputs": inputs}
    subsets |= {f"only {name}": (name,) for name in (*inputs, *parameters) if len(subsets) + len(inputs) < 40}
    for how, trained in subsets.items():
        for name, x in parameters.items():
            x.requires_grad_(name in trained)
        frozen = call.but(frozen=tuple(name for name in inputs if name not in trained))
        if any(f"gradient of {name}" in plain_values(call, call.entry) for name in trained):
            names = {"outputs", *(f"gradient of {name}" for name in trained)}
            yield Variant(f"with a gradient of {how}", frozen, names=names.__contains__)


@relation(
    "training_mode",
    "leaves of the graph that are no parameter",
    entries=(TRAINING, GRADIENT),
    setups=(SMALL,),
    compares=False,
)
def graph_leaves(call: Call) -> Variants:
    """No gradient flows into a tensor that is neither an input nor a parameter, which no optimizer updates."""
    inputs = call.inputs.requiring_grad()
    output = inputs.run(call.in_mode(training=call.entry is TRAINING), seed=1)
    auxiliary_loss(call.module)
    known = {id(x) for x in (*inputs.tensors().values(), *call.module.parameters())}
    nodes, seen = [output.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [parent for parent, _ in node.next_functions]
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            finding = f"{call.entry.name}: a tensor {list(leaf.shape)} that is no nn.Parameter receives a gradient"
            yield float(id(leaf) not in known), f"shape {list(leaf.shape)}", None, finding
    yield 0.0, f"{len(seen)} nodes"


@relation(
    "training_mode",
    "relative error of the second derivative",
    entries=(GRADIENT,),
    setups=(Setup(7, batch=1),),
    limit=SECOND,
    compares=False,
)
def second_derivative(call: Call) -> Variants:
    """After a backward pass with a graph, a second derivative is right, or refused with an error."""
    with contextlib.suppress(Exception):  # float64 is optional
        call = call.double()
    inputs = call.inputs.requiring_grad()
    leaves = list(inputs.tensors().values())
    step = 1e-5 if leaves[0].dtype == torch.float64 else 1e-2

    def slope(*, create_graph: bool = False) -> Tensor:
        output = inputs.run(call.in_mode(training=False))  # the gradient of its sum starts from constants
        first = torch.autograd.grad(output.sum(), leaves, create_graph=create_graph, materialize_grads=True)
        return torch.stack([(x * random_direction(x)).sum() for x in first]).sum()

    total = slope(create_graph=True)
    try:
        second = torch.autograd.grad(total, leaves, materialize_grads=True) if total.requires_grad else ()
    except RuntimeError:
        yield 0.0, "refused"
        return
    derivative = sum(float((x * random_direction(leaf)).sum()) for x, leaf in zip(second, leaves, strict=False))
    slopes = []
    for sign in (1.0, -2.0):
        with torch.no_grad():
            for leaf in leaves:
                leaf.add_(random_direction(leaf), alpha=sign * step)
        slopes.append(float(slope().detach()))
    quotient = (slopes[0] - slopes[1]) / (2.0 * step)
    error = abs(derivative - quotient) / max(abs(quotient), 1e-3 * float(total.detach().abs()), 1e-3)
    yield error, "", None, f"a second derivative is wrong, without an error: {derivative:.3g} instead of {quotient:.3g}"


@check("training_mode", "relative error of the gradient", limit=ROUNDING)
def gradient_of_residual(subject: Subject) -> Measurements:
    """Gradients of x + f(x) are the sums of both, and no backward pass modifies the gradient that it receives."""
    for length in (17, *subject.long):
        module, inputs = subject.case(length, training=True, requires_grad=True)
        leaves = leaves_of(module, inputs)
        direction = torch.randn_like(inputs.query)
        output = inputs.run(module, seed=1)
        expected = gradients_of(output, leaves, direction.clone(), retain_graph=True)
        received = direction.clone()
        repeated = gradients_of(output, leaves, received, retain_graph=True)
        yield difference(received, direction), f"n={length}, gradient passed to backward", 0.0
        yield from errors(repeated, expected, f"n={length}, gradient in a second backward pass")
        # The gradient of the sum is one tensor, which both branches receive.
        expected["query"] = expected["query"] + direction
        for total in (inputs.query + inputs.run(module, seed=1), inputs.run(module, seed=1) + inputs.query):
            actual = gradients_of(total, leaves, direction.clone())
            yield from errors(actual, expected, f"n={length}, gradient of x + f(x)")
        auxiliary_loss(module)


@check("training_mode", "relative error of the sum of two gradients", limit=ROUNDING)
def gradient_of_two_calls(subject: Subject) -> Measurements:
    """Gradients of two calls before one backward pass, and with an evaluation call in between, are those of each."""
    module = subject.build().train()
    earlier = subject.draw(module, 17, batch=3, padding="left")
    later, other = subject.draw(module, 30, seed=2), subject.draw(module, 9, seed=3)
    directions = [torch.randn_like(x.query) for x in (earlier, later)]
    alone = [_summed(module, [x], [w]) for x, w in zip((earlier, later), directions, strict=True)]
    expected = {name: torch.stack([x[name] for x in alone if name in x]).sum(0) for name in alone[0] | alone[1]}
    for how, between in (("one after the other", None), ("with a call in evaluation mode in between", other)):
        together = _summed(module, [earlier, later], directions, between)
        yield from errors(together, expected, f"gradient of n=17 and n=30, {how}")
    auxiliary_loss(module)


@check("training_mode", "relative error of the gradient of a batch", limit=ROUNDING)
def gradient_of_many_rows(subject: Subject) -> Measurements:
    """Gradients of a batch of 72 sequences are the sums of the gradients of its parts of 1, 3, 7 and 61."""
    module = subject.build().train(not subject.is_random_in_training)
    for length in (5, 17) if subject.long else (9,):
        inputs = subject.draw(module, length, batch=sum(MANY))
        direction = torch.randn_like(inputs.query)
        together = outputs_and_gradients(module, inputs, direction)
        rows = torch.arange(sum(MANY)).split(MANY)
        apart = [outputs_and_gradients(module, inputs.rows(index), direction[index]) for index in rows]
        expected = {}
        for name in together:
            is_per_row = name == "outputs" or name.removeprefix("gradient of ") in INPUTS
            tensors = [named[name] for named in apart if name in named]
            expected[name] = torch.cat(tensors) if is_per_row else torch.stack(tensors).sum(0)
        yield from errors(together, expected, f"n={length}, {sum(MANY)} rows")
    auxiliary_loss(module)


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


@check("calls", "values that change with the number of calls")
def no_counters(subject: Subject) -> Measurements:
    """No value outside the state_dict changes when a call is repeated: no counter, no growing list or buffer."""
    for mode in ("training", "evaluation"):
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


@check("training_mode", "parameters without a gradient", declared_in="unused_parameters")
def parameters_in_every_batch(subject: Subject) -> Measurements:
    """Every parameter takes part in the backward pass at every length from 2, as distributed data parallel requires."""
    allowed = tuple(subject.declared("unused_parameters", ()))
    for length, layout in ((2, ""), (17, ""), (17, "left"), (70, ""), (300, "right")):
        module, inputs = subject.case(length, batch=3, padding=layout, training=True)
        output, loss = inputs.requiring_grad().run(module), auxiliary_loss(module)
        (output.sum() + (0.0 if loss is None else loss)).backward()
        untrained = (n for n, p in module.named_parameters() if p.requires_grad and p.grad is None)
        missing = [name for name in untrained if not name.startswith(allowed)]
        where = f"n={length}{f', padding {layout}' if layout else ''} ({', '.join(missing) or 'none'})"
        yield len(missing), where, None, f"no gradient for {', '.join(missing)} at n={length}"


def _summed(
    module: Module, calls: list[Inputs], directions: list[Tensor], between: Inputs | None = None
) -> dict[str, Tensor]:
    """Return the gradients of one backward pass after all calls, with equal random numbers in each."""
    losses: list[Tensor] = []
    leaves: dict[str, Tensor] = {}
    for call, direction in zip(calls, directions, strict=True):
        inputs, length = call.requiring_grad(), call.query.shape[1]
        losses.append((inputs.run(module.train(), seed=length) * direction)[inputs.real].sum())
        leaves |= {f"{name} of n={length}": x for name, x in inputs.tensors().items()}
        if between is not None and len(losses) == 1:
            with torch.no_grad():
                between.run(module.eval())
    leaves |= {name: x for name, x in module.named_parameters() if x.requires_grad}
    return gradients_of(torch.stack(losses).sum(), leaves)


RATES = (0.1, 0.5)
ROWS = 4096
"""Number of equal rows with independent dropout: the standard error of a mean is 1 / 64 of the standard deviation."""

SIMILAR = 0.3
"""Largest similarity of the dropout of two heads or positions."""


@functools.lru_cache(maxsize=1)
def drops(subject: Subject) -> bool:
    """Return whether the class uses dropout and has no other randomness in training."""
    if subject.dropout == 0.0 or subject.is_random_in_training:
        return False
    samples = torch.cat([_parts(subject, 0.5, 5, rows=24, seed=seed) for seed in (1, 2)])
    return bool(samples.std() > 1e-3)


def drops_weights(subject: Subject) -> bool:
    """Return whether outputs are linear in what is dropped; those of a whole layer are normalized afterwards."""
    is_layer = any("Norm" in type(module).__name__ for module in subject.build().modules())
    return drops(subject) and (subject.keeps_whole_contract or not is_layer)


def drops_in_heads(subject: Subject) -> bool:
    """Return whether the class uses dropout and has heads that its last projection merges."""
    width = getattr(getattr(subject.build(), "out_proj", None), "weight", torch.empty(0)).shape
    return len(width) == 2 and width[0] == width[1] and hasattr(subject.build(), "num_heads") and drops(subject)


@check("dropout", "relative error of the mean output", applies=drops_weights)
def dropout_mean(subject: Subject) -> Measurements:
    """On average over many dropout samples, the output equals the output without dropout."""
    for rate in RATES:
        for length in (1, 5):
            parts = _parts(subject, rate, length)
            noise = float(parts.std()) / ROWS**0.5
            yield abs(float(parts.mean()) - 1.0), f"n={length}, dropout {rate:g}", 0.03 + 5.0 * noise


@check("dropout", "error of the dropout rate", applies=drops_weights)
def dropout_rate(subject: Subject) -> Measurements:
    """Both the share of dropped weights and the variance of outputs agree with the declared dropout rate."""
    low, high = (_parts(subject, rate, 5).var().item() for rate in RATES)
    expected = RATES[1] / (1.0 - RATES[1]) / (RATES[0] / (1.0 - RATES[0]))
    ratio = high / low / expected if low else torch.inf
    yield abs(ratio - 1.0), f"n=5, variances at dropout {RATES[0]:g} and {RATES[1]:g}", 0.25
    for rate in RATES:
        parts = _parts(subject, rate, 1)
        nonzero = parts[parts.abs() > 1e-3]
        if len(nonzero) and float(nonzero.std()) < 1e-3:  # a single weight, which is dropped or not
            noise = (rate * (1.0 - rate) / ROWS) ** 0.5
            yield abs(1.0 - len(nonzero) / ROWS - rate), f"n=1, dropout {rate:g}", 0.01 + 5.0 * noise


@check("dropout", "required distance of two samples, relative to the measured distance,", limit=1.0, applies=drops)
def dropout_differs(subject: Subject) -> Measurements:
    """Sequences, calls and modules draw dropout separately: no two of them drop the same."""
    length, count = 40, 24  # a sparse method may have few weights in short sequences
    module, other = (subject.build(dropout=0.5).train() for _ in range(2))
    inputs = subject.draw(module, length, length, batch=1).repeated(count)
    with torch.no_grad():
        torch.manual_seed(1)
        samples = [inputs.run(m).flatten(1).double() for m in (module, module, other)]
    between = torch.cdist(torch.cat(samples), torch.cat(samples))
    typical = between.median().clamp_min(1e-30)
    between.fill_diagonal_(torch.inf)
    pair = int(between.argmin())
    a, b = (f"sequence {i % count} of call {i // count}" for i in divmod(pair, len(between)))
    yield 1e-3 * typical / between.min().clamp_min(1e-30), f"n={length}, {a} and {b}"


@check("dropout", "similarity of the dropout of two heads or positions", limit=SIMILAR, applies=drops_in_heads)
def dropout_per_head(subject: Subject) -> Measurements:
    """Heads and positions draw dropout separately."""
    module = subject.build(dropout=0.5)
    module.out_proj.weight.data.copy_(torch.eye(module.embed_dim))
    inputs = subject.draw(module, 6, 6, batch=1).repeated(512)
    with torch.no_grad():
        noise = inputs.run(module.train(), seed=1).double()
    noise = (noise - noise.mean(0)).unflatten(-1, (module.num_heads, -1))
    for head in range(1, module.num_heads):
        yield _similarity(noise[:, -1, 0], noise[:, -1, head]), f"n=6, heads 0 and {head}"
    for position in (3, 4):
        yield _similarity(noise[:, 5, 0], noise[:, position, 0]), f"n=6, positions 5 and {position}"


def _similarity(a: Tensor, b: Tensor) -> float:
    """Return the linear similarity (CKA) of two centered samples [S, E]: near 0 if independent, near 1 if shared."""
    size = (a.mT @ a).norm() * (b.mT @ b).norm()
    return float((a.mT @ b).norm() ** 2 / size.clamp_min(1e-30))


@torch.no_grad()
def _parts(subject: Subject, rate: float, length: int, *, rows: int = ROWS, seed: int = 1) -> Tensor:
    """Return the coefficients [rows] of the output without dropout in outputs with dropout."""
    module = subject.build(num_heads=1, dropout=rate)
    bias = getattr(getattr(module, "out_proj", None), "bias", None)
    shift = 0.0 if bias is None else bias.double()  # added after dropout, so it would mask the effect
    for draw in range(1, 17):
        inputs = subject.draw(module, length, length, batch=1, seed=draw)
        expected = inputs.run(module)[0].double() - shift
        if expected.any():  # an output of exactly 0, as of ReLU weights, has no coefficient
            break
    draws = inputs.repeated(rows).run(module.train(), seed=seed).double() - shift
    return (draws * expected).sum((1, 2)) / expected.pow(2).sum().clamp_min(1e-30)
