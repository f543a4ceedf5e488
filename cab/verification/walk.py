"""Walks over decoding: reads, branches, reorderings and merges in any order, against the forward pass of each row."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cab.attention import reorder_state
from cab.errors import first_line
from cab.verification.compare import difference
from cab.verification.decoding import decoding
from cab.verification.entries import ALL_STEPS, Call, Setup, State, initial_state, read_chunks
from cab.verification.inputs import Inputs, padding_masks, rows_alone
from cab.verification.relation import Variant, Variants

LONGEST, MOST_ROWS = 48, 6
"""Largest numbers of tokens and rows of a batch in a random walk."""

RULES = ("read", "read", "read", "read with padding", "reorder", "merge", "branch", "change branch", "call", "load")
"""Rules, which a walk follows in random order, again and again."""


class Rule(NamedTuple):
    """One action; it draws from its own seed, so that a walk without it draws the same for all others."""

    name: str
    seed: int = 0
    sizes: tuple[int, ...] = (1, 1)
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

    def __init__(self, call: Call, longest: int) -> None:
        self.subject, self.module, self.dtype = call.subject, copy.deepcopy(call.module), call.inputs.query.dtype
        self.longest = longest
        self.branch: Batch | None = None
        self.batch = self._start(3, 0)
        self.compared: list[tuple[Tensor, Tensor]] = []

    def follow(self, rule: Rule) -> None:
        """Apply a rule; one that does not apply to the batch does nothing."""
        draw, length = random.Random(rule.seed), self.batch.inputs.query.shape[1]
        rows = len(self.batch.outputs)
        if rule.name.startswith("read") and length + sum(rule.sizes) <= self.longest:
            self.batch = self._read(self.batch, rule.sizes, rule.seed, has_padding=rule.name != "read")
        elif rule.name == "reorder":
            order = torch.tensor(draw.choices(range(rows), k=draw.randint(1, 4)), device=self.subject.device)
            inputs, outputs, state = self.batch
            self.batch = Batch(inputs.rows(order), outputs[order], reorder_state(state, order))
        elif rule.name == "merge" and rows < MOST_ROWS:
            self._merge(rule.sizes, rule.seed) or self._merge(_cut(length, rule.sizes), rule.seed)
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
        if inputs.key is not None and self.subject.decodes_padding("inside"):
            inputs = replace(inputs, key_padding=padding_masks("inside", inputs.key).roll(seed, 0))
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
        read, state = read_chunks(self.module, new, sizes, state, reuses_memory=True)
        all_tokens, all_masks = torch.cat([inputs.query, tokens], 1), torch.cat([inputs.query_padding, mask], 1)  # type: ignore[list-item]
        inputs = replace(inputs, query=all_tokens, query_padding=all_masks)
        return Batch(inputs, torch.cat([outputs, read], 1), state)

    def _merge(self, sizes: Sequence[int], seed: int) -> bool:
        """Merge with two other rows, which have read other numbers of tokens, if the shapes of all states agree."""
        batches = [self.batch, self._read(self._start(2, seed), sizes, seed)]
        if len({tuple((name, x.shape[1:]) for name, x in batch.state.items()) for batch in batches}) > 1:
            return False
        longest = max(batch.outputs.shape[1] for batch in batches)
        inputs, outputs, states = zip(*(_aligned(batch, longest) for batch in batches), strict=True)
        rows = {name: torch.cat([x.arguments()[name] for x in inputs]) for name in inputs[0].arguments()}
        state = {name: torch.cat([x[name] for x in states]) for name in states[0]}
        self.batch = Batch(Inputs(**rows), torch.cat(outputs), state)
        return True


def _aligned(batch: Batch, length: int) -> Batch:
    """Return the batch with padding before its tokens."""
    before = length - batch.outputs.shape[1]
    query, outputs = (F.pad(x, (0, 0, before, 0)) for x in (batch.inputs.query, batch.outputs))
    padding = F.pad(batch.inputs.query_padding, (before, 0), value=True)  # type: ignore[arg-type]
    return Batch(replace(batch.inputs, query=query, query_padding=padding), outputs, batch.state)


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


def walk_along(call: Call, rules: Sequence[Rule], longest: int) -> tuple[Tensor, Tensor]:
    """Return the outputs [1, T, D] of decoding along the rules, and those of the forward pass."""
    walk = Walk(call, longest)
    with torch.no_grad():
        for rule in rules:
            walk.follow(rule)
        walk.compare()
    decoded, expected = zip(*walk.compared, strict=True)
    return torch.cat(decoded)[None], torch.cat(expected)[None]


def along(call: Call, rules: Sequence[Rule], longest: int = 128) -> Variants:
    """Compare decoding along the rules, and name the shortest part of them that fails."""

    def fails(rules: Sequence[Rule]) -> bool:
        try:
            return difference(*walk_along(call, rules, longest)) > call.subject.decode_tolerance
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
        decoded, expected = walk_along(call, rules, longest)
    except Exception as error:
        yield math.inf, how, None, f"decoding raises {first_line(error)} after: {shortest()}"
        return
    says = "decoding disagrees with the parallel forward pass after: "
    yield Variant(how, call, values={"outputs": decoded}, base={"outputs": expected}, explain=lambda: says + shortest())


walks = partial(decoding, "branching", entries=(ALL_STEPS,), compares=False)


@walks("relative error along a walk", entries=(ALL_STEPS,), setups=[Setup(30, seed=n, is_full=n > 2) for n in range(9)])
def decode_walk(call: Call) -> Variants:
    """Random sequences of reading, reordering, merging, branching and other calls leave decoding correct."""
    pads = call.subject.decodes_padding("inside")
    rules = draw_rules(call.setup.seed + 101 * call.subject.seed, call.setup.length, pads=pads)
    return along(call, rules, LONGEST)


@walks("relative error of merged states", setups=(4, 5))
def merged_states(call: Call) -> Variants:
    """After merging states, also of unequal age if their shapes agree, decoding continues correctly."""
    return along(call, [_read(call), Rule("merge", 1), Rule("read", 2), Rule("merge", 3), Rule("read", 4)])


@walks("relative error of a branch", setups=(3, 16, 64, 71))
def decode_branches(call: Call) -> Variants:
    """Two branches that continue one state in turn, reusing the memory of tokens and outputs, are both correct."""
    turns = [Rule(name, seed, (1,)) for seed in range(10) for name in ("read", "change branch")]
    return along(call, [_read(call), Rule("branch"), *turns])


@walks(
    "relative error of decoding reordered rows",
    setups=[Setup(n, padding=layout) for n in (10, 11) for layout in ("", "inside")],
)
def decode_reordered(call: Call) -> Variants:
    """After rows of the state are repeated, dropped and reordered (beam search), decoding continues correctly."""
    start = _read(call)
    return along(call, [start, Rule("reorder"), start._replace(seed=2, sizes=(1,) * 8)])


def _read(call: Call) -> Rule:
    """Return the rule that reads a prompt of even length, or an odd number of single tokens."""
    sizes = (1,) * call.setup.length if call.setup.length % 2 else (call.setup.length,)
    return Rule("read with padding" if call.setup.padding else "read", 1, sizes)
