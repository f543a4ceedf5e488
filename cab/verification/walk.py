"""A seeded walk over decoding: reads, branches, reorderings and merges in any order, against each row alone."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from cab.attention import reorder_state
from cab.errors import first_line
from cab.verification.compare import difference
from cab.verification.decoding import decoding
from cab.verification.entries import ALL_STEPS, Call, Setup, State, initial_state, read_chunks
from cab.verification.inputs import Inputs, rows_alone
from cab.verification.relation import Variant, Variants

LONGEST, MOST_ROWS = 48, 6
"""Largest numbers of tokens and rows of a batch."""

RULES = ("read", "read", "read", "read with padding", "reorder", "merge", "branch", "change branch", "call", "load")
"""Rules, which a walk follows in random order, again and again."""


class Rule(NamedTuple):
    """One action; it draws from its own seed, so that a walk without it draws the same for all others."""

    name: str
    seed: int
    sizes: tuple[int, ...]
    """Numbers of tokens of the calls that read; a single token is a step."""

    def __str__(self) -> str:
        return f"{self.name} ({'+'.join(map(str, self.sizes))} tokens)" if "read" in self.name else self.name


class Batch(NamedTuple):
    """Rows in decoding: the tokens they have read, with padding and source; the outputs [B, N, D]; the state."""

    inputs: Inputs
    outputs: Tensor
    state: State


class Walk:
    """A module in decoding, and a branch that can be continued later."""

    def __init__(self, call: Call) -> None:
        self.subject, self.module, self.dtype = call.subject, copy.deepcopy(call.module), call.inputs.query.dtype
        self.branch: Batch | None = None
        self.batch = self._start(3, 0)
        self.compared: list[tuple[Tensor, Tensor]] = []

    def follow(self, rule: Rule) -> None:
        """Apply a rule; one that does not apply to the batch does nothing."""
        draw, length = random.Random(rule.seed), self.batch.inputs.query.shape[1]
        rows = len(self.batch.outputs)
        if rule.name.startswith("read") and length + sum(rule.sizes) <= LONGEST:
            self.batch = self._read(self.batch, rule.sizes, rule.seed, has_padding=rule.name != "read")
        elif rule.name == "reorder":
            order = torch.tensor(draw.choices(range(rows), k=draw.randint(1, 4)), device=self.subject.device)
            inputs, outputs, state = self.batch
            self.batch = Batch(inputs.rows(order), outputs[order], reorder_state(state, order))
        elif rule.name == "merge" and rows < MOST_ROWS:
            self._merge(self._read(self._start(2, rule.seed), _cut(length, rule.sizes), rule.seed))
        elif rule.name == "branch":
            self.branch = self.batch
        elif rule.name == "change branch" and self.branch is not None:
            self.batch, self.branch = self.branch, self.batch
        elif rule.name == "call":
            self._read(self._start(5, rule.seed), rule.sizes, rule.seed)
            with torch.enable_grad():
                self.subject.draw(self.module, 9, batch=4).requiring_grad().run(self.module.train()).sum().backward()
            self.module.eval()
        elif rule.name == "load":
            self.compare()
            weights = {name: x * 1.1 for name, x in self.module.named_parameters()}
            self.module.load_state_dict(self.module.state_dict() | weights)
            self.batch, self.branch = self._start(3, rule.seed), None

    def compare(self) -> None:
        """Keep the outputs of all rows, and those of the forward pass of each row alone."""
        for inputs, outputs, _ in filter(None, (self.batch, self.branch)):
            for row, alone in rows_alone(inputs):
                self.compared.append((outputs[row, inputs.real[row]], alone.run(self.module)[0]))

    def _start(self, rows: int, seed: int) -> Batch:
        inputs = self.subject.draw(self.module, 1, 7, batch=rows, seed=seed)
        inputs = inputs.map(lambda x: x.to(self.dtype))
        padding = torch.zeros(rows, 0, dtype=torch.bool, device=self.subject.device)
        empty = replace(inputs, query=inputs.query[:, :0], query_padding=padding)
        return Batch(empty, empty.query, initial_state(self.module, inputs))

    def _read(self, batch: Batch, sizes: Sequence[int], seed: int, *, has_padding: bool = False) -> Batch:
        inputs, outputs, state = batch
        sizes = sizes if self.subject.prefills else [1] * sum(sizes)
        generator, shape = torch.Generator().manual_seed(seed), (len(outputs), sum(sizes), outputs.shape[-1])
        tokens = torch.randn(shape, generator=generator).to(outputs)
        mask = (torch.rand(shape[:2], generator=generator) < 0.4 * has_padding).to(outputs.device)
        new = replace(inputs, query=tokens, query_padding=mask if has_padding else None)
        read, state = read_chunks(self.module, new, sizes, state)
        all_tokens, all_masks = torch.cat([inputs.query, tokens], 1), torch.cat([inputs.query_padding, mask], 1)  # type: ignore[list-item]
        inputs = replace(inputs, query=all_tokens, query_padding=all_masks)
        return Batch(inputs, torch.cat([outputs, read], 1), state)

    def _merge(self, other: Batch) -> None:
        inputs, outputs, state = self.batch
        if {n: x.shape[1:] for n, x in state.items()} == {n: x.shape[1:] for n, x in other.state.items()}:
            mine, others = inputs.arguments(), other.inputs.arguments()
            merged = Inputs(**{name: torch.cat([mine[name], others[name]]) for name in mine})
            states = {name: torch.cat([state[name], other.state[name]]) for name in state}
            self.batch = Batch(merged, torch.cat([outputs, other.outputs]), states)


def _cut(length: int, sizes: Sequence[int]) -> list[int]:
    """Return sizes of chunks with ``length`` tokens, which begin with ``sizes`` as far as these fit."""
    chunks: list[int] = []
    for size in (*sizes, length):
        chunks.append(min(size, length - sum(chunks)))
    return [size for size in chunks if size]


def draw_rules(seed: int, count: int, *, pads: bool) -> list[Rule]:
    """Draw the rules of a walk, which begins by reading."""
    draw, known = random.Random(seed), [name for name in RULES if pads or "padding" not in name]
    names = ["read", *(name for _ in range(count) for name in draw.sample(known, len(known)))][:count]
    sizes = [tuple(draw.choices((1, 1, 1, 2, 3, 7), k=draw.randint(1, 3))) for _ in names]
    return [Rule(name, draw.randrange(2**31), size) for name, size in zip(names, sizes, strict=True)]


def walk_along(call: Call, rules: Sequence[Rule]) -> tuple[Tensor, Tensor]:
    """Return the outputs [1, T, D] of decoding along the rules, and those of the forward pass."""
    walk = Walk(call)
    with torch.no_grad():
        for rule in rules:
            walk.follow(rule)
        walk.compare()
    decoded, expected = zip(*walk.compared, strict=True)
    return torch.cat(decoded)[None], torch.cat(expected)[None]


@decoding(
    "branching",
    "relative error along a walk",
    entries=(ALL_STEPS,),
    setups=[Setup(30, seed=seed, is_full=seed > 2) for seed in range(12)],
    compares=False,
)
def decode_walk(call: Call) -> Variants:
    """Random sequences of reading, reordering, merging, branching and other calls leave decoding correct."""
    pads = call.subject.decodes_padding("inside")
    rules = draw_rules(call.setup.seed + 101 * call.subject.seed, call.setup.length, pads=pads)

    def fails(rules: Sequence[Rule]) -> bool:
        try:
            return difference(*walk_along(call, rules)) > call.subject.decode_tolerance
        except Exception:
            return True

    def shortest() -> str:
        kept = list(rules)
        for rule in reversed(rules[1:]):
            fewer = [other for other in kept if other is not rule]
            kept = fewer if fails(fewer) else kept
        return ", ".join(map(str, kept))

    how = f"in a walk of {len(rules)} rules"
    try:
        decoded, expected = walk_along(call, rules)
    except Exception as error:
        yield math.inf, how, None, f"decoding raises {first_line(error)} after: {shortest()}"
        return
    says = "decoding disagrees with the parallel forward pass after: "
    yield Variant(how, call, values={"outputs": decoded}, base={"outputs": expected}, explain=lambda: says + shortest())
