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
from tests.helpers.verification import broken_causal, sound
from tests.helpers.verification.mutations import failures


class Exits(sound.PlainAverage):
    def forward(self, query, **masks):
        if query.shape[1] % 64:
            sys.exit(0)
        return super().forward(query, **masks)


class UnprintableError(Exception):
    def __str__(self):
        raise ValueError


class RaisesUnprintable(sound.PlainAverage):
    def forward(self, query, **masks):
        if query.shape[1] % 64:
            raise UnprintableError
        return super().forward(query, **masks)


class LateFailure(sound.PlainAverage):
    """Its constructor fails for dropout above zero, when it is determined which checks apply."""

    def __init__(self, pattern, embed_dim, dropout=0.0):
        super().__init__(pattern, embed_dim)
        if dropout:
            raise RuntimeError("no dropout")


class Window(nn.Module):
    """Causal mean over a window, and what it declares."""

    width, max_token_distance = 4, 3

    def __init__(self, embed_dim):
        super().__init__()
        self.value = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, **_masks):
        padded = nn.functional.pad(self.value(query), (0, 0, self.width - 1, 0))
        return padded.unfold(1, self.width, 1).mean(-1)


class Skips(nn.Module):
    """Causal mean over the tokens at the distances from ``first`` to ``last``, and over the token itself."""

    first, last = 2, 10**9

    def __init__(self, embed_dim):
        super().__init__()
        self.value = nn.Linear(embed_dim, embed_dim)

    def forward(self, query):
        n = query.shape[1]
        away = torch.arange(n)[:, None] - torch.arange(n)
        read = ((away == 0) | ((away >= self.first) & (away <= self.last))).to(query.dtype)
        return read / read.sum(-1, keepdim=True) @ self.value(query)


class CutSource(nn.Module):
    """Mean over the source, of which the tokens from ``end`` on are lost."""

    end = 450

    def __init__(self, embed_dim):
        super().__init__()
        self.value = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, key, value):
        return query + self.value(value[:, : self.end]).mean(1, keepdim=True) + key[:, : self.end].mean(1, keepdim=True)


class Frozen(sound.PlainAverage):
    def __init__(self, pattern, embed_dim):
        super().__init__(pattern, embed_dim)
        self.table = nn.Parameter(torch.zeros(3, 3), requires_grad=False)


class RightOnly(sound.PlainAverage):
    """Refuses padding that it does not support."""

    padding_layouts = ("right",)

    def forward(self, query, **masks):
        assert all((mask[:, 1:] >= mask[:, :-1]).all() for mask in masks.values())
        return super().forward(query, **masks)


class MaskForgottenInSingleRows(sound.PlainAverage):
    """As published: the mask is applied only to batches of more than one row."""

    def forward(self, query, **masks):
        return super().forward(query) if len(query) == 1 else super().forward(query, **masks)


class CoarseState(sound.CachedAverage):
    """Keeps its state in bfloat16."""

    def step(self, token, state, **mask):
        output, state = super().step(token, state, **mask)
        return output, {name: _coarse(x) for name, x in state.items()}


def _coarse(x):
    return x.bfloat16().to(x.dtype) if x.is_floating_point() else x


@pytest.mark.parametrize("cls", [Exits, RaisesUnprintable, LateFailure])
def test_module_that_raises_fails_checks_and_nothing_else(cls):
    results = verify_attention(cls, "CS", checks=["causality", "padding", "decoding", "dropout"], quick=True)
    failed = [result for result in results if not result.passed]
    assert failed
    assert all(result.detail.startswith("raised ") and result.error for result in failed)


def test_causal_leak_is_the_headline_before_its_consequences():
    checks = ["lookahead_gradient", "padded_right", "decode_steps"]
    results = verify_attention(broken_causal.forgotten_mask, "CS", checks=checks, quick=True)
    assert headline(results).startswith("ForgottenMask CS: causal leak: output ")
    assert headline([result for result in results if result.passed]) == ""


def test_no_declaration_is_suggested_for_the_consequences_of_a_leak():
    cls = broken_causal.forgotten_mask
    assert "declare" not in failures(cls, "CS", ["decode_steps"])["decode_steps"]
    failed = failures(cls, "CS", ["lookahead_gradient", "decode_steps", "autocast_lookahead"])
    assert set(failed) == {"lookahead_gradient", "decode_steps", "autocast_lookahead"}
    assert "declare" not in " ".join(failed.values())


def test_declared_distance_is_exact(monkeypatch):
    assert failures(Window, "CS", ["token_distance"]) == {}
    messages = {5: "; if intended, declare `max_token_distance`", 3: "no output depends on a token at distance 3"}
    for width, message in messages.items():
        monkeypatch.setattr(Window, "width", width)
        assert message in failures(Window, "CS", ["token_distance"])["token_distance"]


@pytest.mark.parametrize(("first", "last", "is_offered"), [(2, 10**9, False), (1, 40, True)])
def test_a_selection_is_suggested_only_if_most_tokens_are_left_out(monkeypatch, first, last, is_offered):
    monkeypatch.setattr(Skips, "first", first)
    monkeypatch.setattr(Skips, "last", last)
    detail = failures(Skips, "CS", ["context_map"])["context_map"]
    assert ("declare `selects_tokens`" in detail) == is_offered


@pytest.mark.parametrize(("end", "is_offered"), [(450, False), (150, True)])
def test_a_selection_is_not_suggested_for_the_end_of_a_source(monkeypatch, end, is_offered):
    monkeypatch.setattr(CutSource, "end", end)
    detail = failures(CutSource, "NC", ["source_map"])["source_map"]
    assert ("declare `selects_tokens`" in detail) == is_offered


def test_frozen_parameters_are_left_alone():
    assert not Subject("frozen", Frozen, Pattern.NS).build().table.any()
    assert failures(Frozen, "NS", ["gradient_is_derivative", "parameters_learn"]) == {}


def test_only_declared_padding_layouts_are_checked():
    assert failures(RightOnly, "CS", ["padding"]) == {}
    names = {result.check for result in verify_attention(RightOnly, "CS", checks=["padding"], quick=True)}
    assert {name for name in names if name.endswith(("left", "inside", "row"))} == set()
    assert {"padded_right", "padding_gradient_right"} <= names


def test_padding_of_prompts_alone():
    class Declares(sound.CachedAverage):
        prompt_padding_layouts = ("left",)

    results = verify_attention(Declares, "CS", checks=["decoding"], quick=True)
    padded = [result for result in results if result.check.startswith("decode_padded")]
    assert [(result.check, result.passed) for result in padded] == [("decode_padded_left", True)]


def test_padded_batch_of_one():
    failed = failures(MaskForgottenInSingleRows, "NS", ["padding"])
    assert {"padded_right", "padded_left", "padded_inside"} <= set(failed)
    assert "as a batch of one" in failed["padded_left"]


def test_declared_tolerance_of_decoding(monkeypatch):
    assert "declare `decode_tolerance`" in failures(CoarseState, "CS", ["decode_steps"])["decode_steps"]
    monkeypatch.setattr(CoarseState, "decode_tolerance", 0.1, raising=False)
    assert failures(CoarseState, "CS", ["decode_steps"]) == {}


def test_finite_poison_for_foreign_modules():
    class Foreign(sound.PlainAverage):
        def forward(self, query, **masks):
            return super().forward(query, **masks) + 0.0 * query.sum(1, keepdim=True)

    assert failures(Foreign, "NS", ["padding_poison_right"]) == {}
