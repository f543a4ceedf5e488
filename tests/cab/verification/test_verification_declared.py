"""Declarations of a class, crashes of a module, and the order of results."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from cab import Pattern
from cab.verification import verify_attention
from cab.verification.subject import Subject
from cab.verification.suite import headline
from tests.helpers.verification import broken_decoding, sound  # noqa: F401
from tests.helpers.verification.mutations import PLANTED, failures, variant

FORGOTTEN_MASK = PLANTED["forgotten_mask"]


class UnprintableError(Exception):
    def __str__(self):
        raise ValueError


def raises(error):
    raise error


class LateFailure(sound.PlainAverage):
    """Its constructor fails for dropout above zero, when it is determined which checks apply."""

    def __init__(self, pattern, embed_dim, dropout=0.0):
        super().__init__(pattern, embed_dim)
        if dropout:
            raise RuntimeError("no dropout")


EXITS = variant(sound.PlainAverage, forward=lambda c: sys.exit(0) if c.n % 64 else c.result)
UNPRINTABLE = variant(sound.PlainAverage, forward=lambda c: raises(UnprintableError()) if c.n % 64 else c.result)


class Valued(nn.Module):
    def __init__(self, embed_dim):
        super().__init__()
        self.value = nn.Linear(embed_dim, embed_dim)


class Skips(Valued):
    """Causal mean over the tokens at the distances from ``first`` to ``last``, and over the token itself."""

    first, last = 0, 3

    def forward(self, query):
        n = query.shape[1]
        away = torch.arange(n)[:, None] - torch.arange(n)
        read = ((away == 0) | ((away >= self.first) & (away <= self.last))).to(query.dtype)
        return read / read.sum(-1, keepdim=True) @ self.value(query)


class CutSource(Valued):
    """Mean over the source, of which the tokens from ``end`` on are lost."""

    end = 450

    def forward(self, query, key, value):
        return query + self.value(value[:, : self.end]).mean(1, keepdim=True) + key[:, : self.end].mean(1, keepdim=True)


class Frozen(sound.PlainAverage):
    def __init__(self, pattern, embed_dim):
        super().__init__(pattern, embed_dim)
        self.table = nn.Parameter(torch.zeros(3, 3), requires_grad=False)


@pytest.mark.parametrize("cls", [EXITS, UNPRINTABLE, LateFailure])
def test_module_that_raises_fails_checks_and_nothing_else(cls):
    results = verify_attention(cls, "CS", checks=["causality", "padding", "decoding", "dropout"], quick=True)
    failed = [result for result in results if not result.passed]
    assert failed
    assert all(result.detail.startswith("raised ") and result.error for result in failed)


def test_a_leak_is_the_headline_and_no_declaration_is_suggested_for_its_consequences():
    checks = ["lookahead_gradient", "decode_steps", "autocast_lookahead"]
    results = verify_attention(FORGOTTEN_MASK, "CS", checks=checks, quick=True)
    assert not any(result.passed for result in results)
    assert "declare" not in " ".join(result.detail for result in results)
    assert headline(results).startswith("forgotten_mask CS: causal leak: output ")
    assert "declare" not in failures(FORGOTTEN_MASK, "CS", ["decode_steps"])["decode_steps"]


def test_declared_distance_is_exact():
    assert failures(variant(Skips, max_token_distance=3), "CS", ["token_distance"]) == {}
    messages = {4: "; if intended, declare `max_token_distance`", 2: "no output depends on a token at distance 3"}
    for last, message in messages.items():
        cls = variant(Skips, max_token_distance=3, last=last)
        assert message in failures(cls, "CS", ["token_distance"])["token_distance"]


@pytest.mark.parametrize(
    ("cls", "check", "is_offered"),
    [
        (variant(Skips, first=2, last=10**9), "context_map", False),
        (variant(Skips, first=1, last=40), "context_map", True),
        (CutSource, "source_map", False),
        (variant(CutSource, end=150), "source_map", True),
    ],
)
def test_a_selection_is_suggested_only_if_most_tokens_are_left_out(cls, check, is_offered):
    """Not for the end of a source."""
    detail = failures(cls, "CS" if check == "context_map" else "NC", [check])[check]
    assert ("declare `selects_tokens`" in detail) == is_offered


def test_frozen_parameters_are_left_alone():
    assert not Subject("frozen", Frozen, Pattern.NS).build().table.any()
    assert failures(Frozen, "NS", ["gradient_is_derivative", "parameters_learn"]) == {}


def test_only_declared_padding_layouts_are_checked():
    cls = variant(sound.PlainAverage, padding_layouts=("right",), forward=refuses_other_padding)
    results = {result.check: result.passed for result in verify_attention(cls, "CS", checks=["padding"], quick=True)}
    assert all(results.values())
    assert not [name for name in results if name.endswith(("left", "inside", "row"))]
    assert {"padded_right", "padding_gradient_right"} <= results.keys()


def refuses_other_padding(call):
    masks = (call.query_padding_mask, call.key_padding_mask)
    assert all(mask is None or (mask[:, 1:] >= mask[:, :-1]).all() for mask in masks)
    return call.result


def test_padding_of_prompts_alone():
    cls = variant(sound.CachedAverage, prompt_padding_layouts=("left",))
    results = verify_attention(cls, "CS", checks=["decoding"], quick=True)
    padded = [result for result in results if result.check.startswith("decode_padded")]
    assert [(result.check, result.passed) for result in padded] == [("decode_padded_left", True)]


def test_padded_batch_of_one():
    """As published: the mask is applied only to batches of more than one row."""

    def forgets(call):
        return call.but(query_padding_mask=None, key_padding_mask=None) if len(call.query) == 1 else call.result

    failed = failures(variant(sound.PlainAverage, forward=forgets), "NS", ["padding"])
    assert {"padded_right", "padded_left", "padded_inside"} <= set(failed)
    assert "as a batch of one" in failed["padded_left"]


def test_declared_tolerance_of_decoding():
    coarse = variant(
        sound.CachedAverage,
        step=lambda c: (c.output, {name: x.bfloat16().to(x.dtype) for name, x in c.new.items()}),
    )
    assert "declare `decode_tolerance`" in failures(coarse, "CS", ["decode_steps"])["decode_steps"]
    assert failures(variant(coarse, decode_tolerance=0.1), "CS", ["decode_steps"]) == {}


def test_finite_poison_for_foreign_modules():
    foreign = variant(sound.PlainAverage, forward=lambda c: c.result + 0.0 * c.query.sum(1, keepdim=True))
    assert failures(foreign, "NS", ["padding_poison_right"]) == {}
