"""Training checks: training mode computes the function of evaluation mode; gradients compose; dropout has its rate."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from cab.training import auxiliary_loss
from cab.verification.check import Measurements, check
from cab.verification.compare import ROUNDING
from cab.verification.entries import FORWARD, GRADIENT, LONGEST, TRAINING, Call, Setup, random_direction
from cab.verification.foreign.adapters import WrappedModule
from cab.verification.inputs import Inputs, Module
from cab.verification.numerics import SLOPE, derivative_error
from cab.verification.relation import MEMORY, Variant, Variants, is_computed, plain_values, relation
from cab.verification.subject import Subject

# --- gradients -------------------------------------------------------------------------------------------------------

gradient = partial(relation, "training_mode", limit=ROUNDING, entries=(GRADIENT, TRAINING), setups=(9,))


@gradient(
    entries=(TRAINING, FORWARD),
    against=GRADIENT,
    applies=lambda s: not s.is_random_in_training,
    setups=(
        1,
        17,
        Setup(17, 3, padding="left"),
        130,
        Setup(130, 3, padding="inside"),
        Setup(33, 3, padding="inside", drops_nothing=True),
        Setup(130, drops_nothing=True),
        Setup(600, is_full=True),
        LONGEST,
    ),
)
def training_is_evaluation(call: Call) -> Variants:
    """If nothing is dropped, training and evaluation mode, with and without autograd, give equal values."""
    yield Variant("", call, names="outputs".__eq__ if call.entry is FORWARD else is_computed)


@gradient(entries=(TRAINING,), setups=(Setup(9, batch=3), LONGEST))
def gradient_of_residual(call: Call) -> Variants:
    """Gradients are linear in the gradient that they receive, whatever its scale and layout, and do not modify it."""
    for scale in (2.0**-40, 2.0**17):  # exact in float32 and bfloat16
        scaled = call.but(cotangent=lambda x, scale=scale: scale * random_direction(x))
        yield Variant(f"of a gradient x{scale:g}", scaled, factor=scale)
    received: list[Tensor] = []

    def strided(layout: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        received.append(layout(random_direction(x)))
        return received[-1]

    def overwritten(x: Tensor) -> Tensor:
        x.detach().fill_(torch.nan)
        return random_direction(x)

    for how, layout in MEMORY.items():
        yield Variant(f"of gradients {how}", call.but(cotangent=partial(strided, layout)))
    with contextlib.suppress(RuntimeError):  # torch refuses the backward pass
        values = call.but(cotangent=overwritten).run()
        yield Variant("after a write into the output", call, names=lambda x: x.startswith("gradient"), values=values)
    yield Variant("of the next call after a write into the output", call)
    for x in received:
        finding = "a backward pass writes into the gradient that it receives"
        yield float(not torch.equal(x, random_direction(x))), "gradient passed to backward", 0.0, finding
    ones = call.but(cotangent=torch.ones_like).run()
    yield Variant("of an expanded gradient", call.but(cotangent=lambda x: x.new_ones(1, 1, 1).expand_as(x)), base=ones)


@gradient(setups=(Setup(17, 3, padding="left"),))
def gradient_of_two_calls(call: Call) -> Variants:
    """With another call between a call and its backward pass, gradients are the same."""
    other = call.but(inputs=call.subject.draw(call.module, 30, seed=2), setup=Setup(30))
    for entry in (TRAINING, FORWARD):

        def between(x: Tensor, entry: Any = entry) -> Tensor:
            other.run(entry)
            return random_direction(x)

        yield Variant(f"with {entry.name} of another batch before the backward pass", call.but(cotangent=between))


@gradient(entries=(GRADIENT,))
def frozen_leaves(call: Call) -> Variants:
    """Gradients of some inputs and parameters do not depend on whether the others need one."""
    parameters = {name: x for name, x in call.module.named_parameters() if x.requires_grad}
    inputs, known = tuple(call.inputs.tensors()), plain_values(call, call.entry)
    subsets = [tuple(parameters), inputs, *((name,) for name in (*inputs, *parameters))]
    for trained in subsets:
        for name, x in parameters.items():
            x.requires_grad_(name in trained)
        if any(f"gradient of {name}" in known for name in trained):
            names = {"outputs", *(f"gradient of {name}" for name in trained)}
            frozen = call.but(frozen=tuple(name for name in inputs if name not in trained))
            yield Variant(f"of {', '.join(trained[:2])} alone", frozen, names=names.__contains__)


@gradient("tensors that are not parameters", compares=False)
def graph_leaves(call: Call) -> Variants:
    """No gradient flows into a tensor that is neither an input nor a parameter, which no optimizer updates."""
    known = {id(x) for x in call.module.parameters()}
    leaves: list[Tensor] = []

    def walk(x: Tensor) -> Tensor:
        loss = auxiliary_loss(call.module)
        nodes, seen = [x.grad_fn, None if loss is None else loss.grad_fn], set[Any]()
        while nodes:
            node = nodes.pop()
            if node is not None and node not in seen:
                seen.add(node)
                nodes += [parent for parent, _ in node.next_functions]
                leaves.append(getattr(node, "variable", x))
        return random_direction(x)

    def view(x: Inputs) -> Inputs:
        known.update(map(id, x.tensors().values()))
        return x

    call.but(view=view, cotangent=walk).run()
    for leaf in (leaf for leaf in leaves if leaf.grad_fn is None):
        finding = f"{call.entry.name} train a tensor {list(leaf.shape)} that is no nn.Parameter"
        yield float(id(leaf) not in known), f"shape {list(leaf.shape)}", None, finding


class _Slopes(nn.Module):
    """A module whose output is the gradient to the query of a module's weighted outputs, plus that to the source."""

    def __init__(self, module: Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *tensors: Tensor) -> Tensor:
        with torch.enable_grad():
            leaves = [x if x.requires_grad else x.detach().requires_grad_() for x in tensors]
            output = Inputs(*leaves).run(self.module)
            total = (output * random_direction(output)).sum()  # a plain sum of normalized outputs is constant
            query, *source = torch.autograd.grad(total, leaves, create_graph=True, materialize_grads=True)
            return sum(((x * random_direction(x)).sum(1, keepdim=True) for x in source), query + 0.0 * leaves[0])


@gradient(
    "relative error of the second derivative",
    entries=(GRADIENT,),
    setups=(Setup(7, 1),),
    limit=SLOPE,
    compares=False,
    applies=lambda s: s.claims.has_exact_gradient,
)
def second_derivative(call: Call) -> Variants:
    """After a backward pass with a graph, a second derivative is right, or refused with an error."""
    if call.subject.epsilon > 1e-6:  # a quotient of differences says nothing of a module that computes coarsely
        return
    call.run(FORWARD)
    try:
        error, limit = derivative_error(_Slopes(call.module).requires_grad_(False), call.inputs)
        yield error, "", limit, "a second derivative is wrong, without an error"
    except RuntimeError:
        yield 0.0, "refused"


# --- parameters and dropout ------------------------------------------------------------------------------------------


def _backward(module: Module, inputs: Inputs) -> None:
    """Propagate a random gradient of real outputs, and that of the auxiliary loss, back to the parameters."""
    output, loss = inputs.run(module), auxiliary_loss(module)
    ((output * torch.randn_like(output))[inputs.real].sum() + (0.0 if loss is None else loss)).backward()


@check("state", "parameters without a gradient")
def parameters_learn(subject: Subject) -> Measurements:
    """As initialized, every parameter receives a gradient in some training step, from output or auxiliary loss."""
    trained = subject.build(keeps_zeros=True).train()
    missing = {name for name, p in trained.named_parameters() if p.requires_grad and p.numel()}
    tested = []
    for length, layout in ((1, ""), (17, ""), (70, "right"), (700, "")):
        if not missing:
            break
        _backward(trained, subject.draw(trained, length, batch=3, padding=layout))
        for name, p in trained.named_parameters():
            if p.grad is not None:
                missing -= {name} if p.grad.any() else set()
                p.data.add_(p.grad.sign(), alpha=0.1)  # what was zero, such as a gate, now lets gradients pass
        tested.append(length)
    yield len(missing), f"n={', '.join(map(str, tested))} ({', '.join(sorted(missing)) or 'none'})"


@relation(
    "training_mode",
    "parameters without a gradient",
    entries=(TRAINING,),
    setups=[Setup(n, 3, padding=x) for n, x in ((2, ""), (17, ""), (17, "left"), (70, ""), (300, "right"))],
    compares=False,
    declared_in="unused_parameters",
)
def parameters_in_every_batch(call: Call) -> Variants:
    """Every parameter takes part in the backward pass at every length from 2, as distributed data parallel requires."""
    allowed = tuple(call.subject.declared("unused_parameters", ()))
    _backward(call.in_mode(training=True), call.inputs.requiring_grad())
    unused = (name for name, p in call.module.named_parameters() if p.requires_grad and p.grad is None)
    names = ", ".join(missing := [name for name in unused if not name.removeprefix("module.").startswith(allowed)])
    yield len(missing), names, None, f"no gradient for {names} at n={call.setup.length}"


RATES = (0.1, 0.5)
ROWS = 4096
"""Number of equal rows with independent dropout: the standard error of a mean is 1 / 64 of the standard deviation."""


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


def unwrapped(module: nn.Module) -> Any:
    """Return the module that has the heads and their last projection: that of a factory, or the module itself."""
    return module.module if isinstance(module, WrappedModule) else module


def drops_in_heads(subject: Subject) -> bool:
    """Return whether the class uses dropout and has heads that its last projection merges."""
    module = unwrapped(subject.build())
    width = getattr(getattr(module, "out_proj", None), "weight", torch.empty(0)).shape
    return len(width) == 2 and width[0] == width[1] and hasattr(module, "num_heads") and drops(subject)


@check("dropout", "relative error of the mean output", applies=drops_weights)
def dropout_mean(subject: Subject) -> Measurements:
    """On average over many dropout samples, the output equals the output without dropout."""
    for rate, length in product(RATES, (1, 5)):
        parts = _parts(subject, rate, length)
        noise = float(parts.std()) / ROWS**0.5
        if len(parts):
            yield abs(float(parts.mean()) - 1.0), f"n={length}, dropout {rate:g}", 0.03 + 5.0 * noise


@check("dropout", "error of the dropout rate", applies=drops_weights)
def dropout_rate(subject: Subject) -> Measurements:
    """Both the share of dropped weights and the variance of outputs agree with the declared dropout rate."""
    low, high = (float(_parts(subject, rate, 5).var()) / rate * (1.0 - rate) for rate in RATES)
    yield abs(high / max(low, 1e-30) - 1.0), f"n=5, variances at dropout {RATES[0]:g} and {RATES[1]:g}", 0.25
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
        samples = torch.cat([inputs.run(m).flatten(1).double() for m in (module, module, other)])
    between = torch.pdist(samples)
    closest = torch.triu_indices(len(samples), len(samples), 1)[:, int(between.argmin())]
    a, b = (f"sequence {i % count} of call {i // count}" for i in closest.tolist())
    yield 1e-3 * between.median() / between.min().clamp_min(1e-30), f"n={length}, {a} and {b}"


@check("dropout", "similarity of the dropout of two heads or positions", limit=0.3, applies=drops_in_heads)
def dropout_per_head(subject: Subject) -> Measurements:
    """Heads and positions draw dropout separately."""
    module = subject.build(dropout=0.5)
    own = unwrapped(module)
    own.out_proj.weight.data.copy_(torch.eye(module.embed_dim))
    inputs = subject.draw(module, 6, 6, batch=1).repeated(512)
    with torch.no_grad():
        noise = inputs.run(module.train(), seed=1).double()
    noise = (noise - noise.mean(0)).unflatten(-1, (own.num_heads, -1))
    others = [(-1, head) for head in range(1, own.num_heads)] + [(3, 0), (4, 0)]
    for position, head in others:
        a, b = noise[:, -1, 0], noise[:, position, head]  # centered samples [S, E]
        size = (a.mT @ a).norm() * (b.mT @ b).norm()
        similarity = (a.mT @ b).norm() ** 2 / size.clamp_min(1e-30)  # CKA: near 0 if independent, near 1 if shared
        yield similarity, f"n=6, position 5 of head 0 and position {position % 6} of head {head}"


@torch.no_grad()
def _parts(subject: Subject, rate: float, length: int, *, rows: int = ROWS, seed: int = 1) -> Tensor:
    """Return the coefficients [rows] of the output without dropout in outputs with dropout, which checks share.

    Without rows if the output is always zero: a first token that does not see itself.
    """
    key = (rate, length, rows, seed)
    if key not in subject.shared:
        module = subject.build(num_heads=1, dropout=rate)
        bias = getattr(getattr(unwrapped(module), "out_proj", None), "bias", None)
        shift = 0.0 if bias is None else bias.double()  # added after dropout, so it would mask the effect
        for draw in range(1, 17):
            inputs = subject.draw(module, length, length, batch=1, seed=draw)
            expected = inputs.run(module)[0].double() - shift
            if expected.any():  # an output of exactly 0, as of ReLU weights, has no coefficient
                break
        draws = inputs.repeated(rows).run(module.train(), seed=seed).double() - shift
        parts = (draws * expected).sum((1, 2)) / expected.pow(2).sum().clamp_min(1e-30)
        subject.shared[key] = parts if expected.any() else parts[:0]
    return subject.shared[key]
