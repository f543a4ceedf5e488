"""Compare random calls of all attentions with their reference implementations; exit status 1 if one differs.

python -m tools.verification.fuzz [CALLS] [--seed SEED] [--only NUMBER]

A call is determined by a seed and its number, so every call can be repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cab.errors import UserError
from cab.registry.registries import ATTENTIONS
from cab.verification import subject_of
from cab.verification.compare import difference, distance, gradient_floor
from cab.verification.inputs import Inputs, Module, gradients_of, leaves_of, masked_inputs
from cab.verification.numerics import FAST, autocast, near
from cab.verification.subject import Subject

EXACT = 1e-6
"""Limit in float64, for outputs and gradients."""
NOISES = 20
"""Number of input perturbations used to measure a method's sensitivity."""
MARGIN = 4.0
"""Factor on the measured sensitivity: a method rounds more often than its inputs."""
LAYOUTS = ("none", "right", "left", "inside", "rows")


@dataclass(frozen=True)
class Call:
    """One random call: ``lengths`` and layouts of ``padding`` are of targets and source."""

    number: int
    attention: str
    pattern: str
    batch: int
    lengths: tuple[int, int]
    heads: int
    head_dim: int
    padding: tuple[str, str]
    scale: float
    precision: str
    training: bool


@dataclass(frozen=True)
class Finding:
    """The largest error of a call relative to its limit; ``error`` is None if the attention rejected the call."""

    call: Call
    error: float | None
    limit: float
    where: str

    @property
    def passed(self) -> bool:
        """Whether the error is within the limit."""
        return self.error is None or self.error <= self.limit


def draw_call(seed: int, number: int) -> Call:
    """Draw a call of a registered attention that has a reference implementation."""
    generator = random.Random(f"{seed} {number}")
    entry = generator.choice([entry for entry in ATTENTIONS if entry.cls.reference is not None])
    longest = generator.choice((4, 24, 24, 70, 160))
    precision = generator.choice(("float64", "float64", "float32", "float32", "bfloat16", "float16"))
    is_low = precision in ("bfloat16", "float16")
    return Call(
        number=number,
        attention=entry.name,
        pattern=str(generator.choice(entry.patterns)),
        batch=generator.randint(1, 5),
        lengths=(generator.randint(1, longest), generator.randint(1, longest)),
        heads=generator.choice((1, 2, 3, 4)),
        head_dim=generator.choice((4, 8, 16)),
        padding=(generator.choice(LAYOUTS), generator.choice(LAYOUTS)),
        scale=generator.choice((0.1, 1.0) if is_low else (0.1, 1.0, 1.0, 4.0)),  # large ones amplify rounding
        precision=precision,
        training=generator.random() < 0.5,
    )


def check_calls(seed: int, numbers: Iterable[int]) -> Iterator[Finding]:
    """Yield the findings of the calls with the given numbers."""
    for number in numbers:
        call = draw_call(seed, number)
        with torch.random.fork_rng(devices=[]):
            yield check_call(call, seed)


def check_call(call: Call, seed: int = 0) -> Finding:
    """Compare outputs and, in float32 and float64, all gradients with the reference implementation."""
    subject = subject_of(call.attention, call.pattern, options={})
    width = call.heads * call.head_dim
    try:
        module = subject.build(embed_dim=width, num_heads=call.heads, seed=call.number).train(call.training)
        inputs = _inputs(call, subject, module, seed)
        excesses = list(_excesses(call, subject, module, inputs))
    except UserError:
        return Finding(call, None, 0.0, "rejected")
    where, error, limit = max(excesses, key=lambda one: (one[1] > one[2], one[1] / max(one[2], EXACT)))
    return Finding(call, error, limit, where)


def _excesses(call: Call, subject: Subject, module: Module, inputs: Inputs) -> Iterator[tuple[str, float, float]]:
    """Yield name, error and limit of each compared quantity.

    If an error exceeds its limit, the reference implementation also runs on inputs perturbed by up to two spacings of
    the dtype. The limit grows with the resulting change: a steep function amplifies rounding in any implementation.
    """
    dtype = getattr(torch, call.precision)
    if not inputs.real.any():
        yield "padded outputs", inputs.run(module).abs().max().item(), 0.0
        return
    is_low = dtype in (torch.bfloat16, torch.float16)
    run = _outputs if is_low else outputs_and_gradients
    module, inputs = (module.double(), inputs.map(torch.Tensor.double)) if dtype is torch.float64 else (module, inputs)
    direction = torch.randn_like(inputs.query)
    with autocast(subject, dtype) if is_low and dtype in subject.autocast_dtypes else contextlib.nullcontext():
        fast = run(module, inputs, direction, seed=1)
    module.use_reference = True
    slow = run(module, inputs, direction, seed=1)
    limit = near(dtype) if is_low else EXACT if dtype is torch.float64 else FAST

    def errors(actual: Mapping[str, Tensor]) -> dict[str, float]:
        if is_low:
            return {"outputs": distance(actual["outputs"], slow["outputs"])}
        floor, missing = gradient_floor(slow), torch.zeros(())
        return {name: difference(actual.get(name, missing.expand_as(x)), x, floor) for name, x in slow.items()}

    excess = errors(fast)
    limits = dict.fromkeys(excess, limit)
    if max(excess.values()) > limit:
        noise = torch.Generator().manual_seed(call.number)
        for _ in range(NOISES):
            moved = errors(run(module, _moved(inputs, torch.finfo(dtype).eps, noise), direction, seed=1))
            limits = {name: max(allowed, limit + MARGIN * moved[name]) for name, allowed in limits.items()}
    yield from ((name, error, limits[name]) for name, error in excess.items())


def outputs_and_gradients(module: Module, inputs: Inputs, direction: Tensor, *, seed: int) -> dict[str, Tensor]:
    """Return outputs at real tokens, and their gradients in ``direction`` to real inputs and to parameters."""
    inputs = inputs.requiring_grad()
    output = inputs.run(module, seed=seed)
    gradients = gradients_of((output * direction)[inputs.real].sum(), leaves_of(module, inputs))
    gradients |= {name: gradients[name][~mask] for name, _, mask in masked_inputs(inputs) if name in gradients}
    return {"outputs": output.detach()[inputs.real]} | {f"gradient of {name}": x for name, x in gradients.items()}


def _outputs(module: Module, inputs: Inputs, _direction: Tensor, *, seed: int) -> dict[str, Tensor]:
    with torch.no_grad():
        return {"outputs": inputs.run(module, seed=seed)}


def _moved(inputs: Inputs, epsilon: float, generator: torch.Generator) -> Inputs:
    """Return the inputs with every value perturbed by up to two of its spacings."""
    moved = {}
    for name, x in inputs.tensors().items():
        moved[name] = x * (1 + 2 * epsilon * (2 * torch.rand(x.shape, generator=generator) - 1))
    return replace(inputs, **moved)


def _inputs(call: Call, subject: Subject, module: Module, seed: int) -> Inputs:
    inputs = subject.draw(module, *call.lengths, batch=call.batch, scale=call.scale, seed=seed + call.number)
    generator = torch.Generator().manual_seed(seed + call.number)
    pairs = zip(call.padding, (inputs.query, inputs.key), strict=True)
    query, source = (None if x is None else _mask(layout, x.shape[0], x.shape[1], generator) for layout, x in pairs)
    return replace(inputs, query_padding=query, key_padding=source)


def _mask(layout: str, batch: int, length: int, generator: torch.Generator) -> Tensor | None:
    """Return a bool mask [B, N], True at padding; entire rows may be padding."""
    if layout == "none":
        return None
    count = torch.randint(length + 1, (batch, 1), generator=generator)
    place = torch.arange(length)
    if layout == "right":
        return place >= count
    if layout == "left":
        return place < count
    if layout == "inside":
        return torch.rand(batch, length, generator=generator) < 0.5
    return (torch.rand(batch, 1, generator=generator) < 0.5).expand(batch, length).clone()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("calls", nargs="?", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="repeat the call with this number")
    args = parser.parse_args()
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    worst: dict[tuple[str, str], float] = {}
    for finding in check_calls(args.seed, range(args.calls) if args.only is None else [args.only]):
        call = finding.call
        if finding.error is None:
            counts["refused"] += 1
            continue
        counts["compared"] += 1
        counts[call.precision] += 1
        counts["in training"] += call.training
        counts["with padding"] += call.padding != ("none", "none")
        key = call.attention, call.precision
        worst[key] = max(worst.get(key, 0.0), finding.error / finding.limit if finding.error else 0.0)
        if not finding.passed:
            counts["failed"] += 1
            print(f"{finding.where} differ by {finding.error:.2g} > {finding.limit:.2g}: {call}", flush=True)
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    for (attention, precision), share in sorted(worst.items()):
        print(f"{attention:20} {precision:10} worst error / limit {share:9.2g}")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
