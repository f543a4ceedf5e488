"""Findings: declarations that are suggested or not, one finding for one cause, crashes, and the order of results."""

import os
import random
import re
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cab import Pattern, UserError
from cab.verification import run_checks, select_checks, verify_attention
from cab.verification.foreign import adapter_of
from cab.verification.side_effects import changes_since, read_settings
from cab.verification.subject import Subject
from cab.verification.suite import headline
from tests.cab.verification.planted import sound
from tests.cab.verification.planted.mutations import Weighted, each, failures, variant
from tests.helpers.command import cab

FORGOTTEN_MASK = variant(Weighted, forgets=lambda _: True)


def failed(cls, pattern, checks):
    results = verify_attention(cls, pattern, checks=checks, quick=True)
    return {result.check: result for result in results if not result.passed}


# --- crashes -----------------------------------------------------------------------------------------------------


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


EXITS = variant(sound.PlainAverage, forward=lambda c: sys.exit(0) if c.n % 64 else c.y)
UNPRINTABLE = variant(sound.PlainAverage, forward=lambda c: raises(UnprintableError()) if c.n % 64 else c.y)


@pytest.mark.parametrize("cls", [EXITS, UNPRINTABLE, LateFailure])
def test_module_that_raises_fails_checks_and_nothing_else(cls):
    wrong = failed(cls, "CS", ["causality", "padding", "decoding", "dropout"])
    assert wrong
    assert all(result.detail.startswith("raised ") and result.error for result in wrong.values())


CRASHING = """
import os
from torch import nn

class Crashing(nn.Module):
    def __init__(self, embed_dim):
        super().__init__()
        self.linear = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, **masks):
        return os.abort() if query.shape[1] == 1 else self.linear(query)
"""


@pytest.mark.slow
def test_results_before_a_crash_of_the_process_are_printed(tmp_path):
    """Each row of CSV is flushed; the line that crashed is shown."""
    (tmp_path / "crashing.py").write_text(CRASHING)
    words = "verify crashing.py:Crashing --pattern NS --quick --checks inputs_untouched,length_one --csv"
    process = cab(*words.split(), cwd=tmp_path)
    assert process.returncode < 0
    assert process.stdout.splitlines()[1].startswith("Crashing,NS,inputs_untouched,true,")
    assert "crashing.py" in process.stderr
    assert f"{os.sep}verification{os.sep}" in process.stderr


# --- what is declared --------------------------------------------------------------------------------------------


class Skips(sound.PlainAverage):
    """Causal mean over the tokens at the distances from ``first`` to ``last``, and over the token itself."""

    first, last = 0, 3

    def forward(self, query):
        n = query.shape[1]
        away = torch.arange(n)[:, None] - torch.arange(n)
        read = ((away == 0) | ((away >= self.first) & (away <= self.last))).to(query.dtype)
        return read / read.sum(-1, keepdim=True) @ self.value(query)


class CutSource(sound.PlainAverage):
    """Mean over the source, of which the tokens from ``end`` on are lost."""

    end = 450

    def forward(self, query, key, value):
        return query + self.value(value[:, : self.end]).mean(1, keepdim=True) + key[:, : self.end].mean(1, keepdim=True)


CROSS_WITHOUT_SOURCE = variant(sound.PlainCross, forward=lambda c: c.maps[0](c.query))
COARSE = variant(sound.CachedAverage, step=lambda c: each(c.new, lambda x: x.bfloat16().to(x.dtype)))
DETAILS = [
    (variant(Skips, max_token_distance=3, last=4), "token_distance", "declare `max_token_distance`", True),
    (
        variant(Skips, max_token_distance=3, last=2),
        "token_distance",
        "no output depends on a token at distance 3",
        True,
    ),
    # A selection is suggested only if most tokens are left out, and not for the end of a source.
    (variant(Skips, first=2, last=10**9), "context_map", "", False),
    (variant(Skips, first=1, last=40), "context_map", "declare `selects_tokens`", True),
    (CutSource, "source_map", "", False),
    (variant(CutSource, end=150), "source_map", "declare `selects_tokens`", True),
    (CROSS_WITHOUT_SOURCE, "context_is_used", "output 257 of n=258 does not depend on the source (m=132)", False),
    (FORGOTTEN_MASK, "decode_steps", "", False),
    (COARSE, "decode_steps", "declare `decode_tolerance`", True),
]
DECLARED = [
    (variant(Skips, max_token_distance=3), "token_distance"),
    (variant(COARSE, decode_tolerance=0.1), "decode_steps"),
]


@pytest.mark.parametrize(("cls", "check", "words", "is_offered"), DETAILS)
def test_a_declaration_is_suggested_only_where_it_can_be_intended(cls, check, words, is_offered):
    result = failed(cls, "NC" if check in ("source_map", "context_is_used") else "CS", [check])[check]
    assert words in result.detail or words == result.finding
    assert ("declare" in result.detail) == is_offered


@pytest.mark.parametrize(("cls", "check"), DECLARED)
def test_what_is_declared_passes(cls, check):
    assert failures(cls, "CS", [check]) == {}


def test_padded_batch_of_one():
    """As published: the mask is applied only to batches of more than one row."""
    without = {"query_padding_mask": None, "key_padding_mask": None}
    cls = variant(sound.PlainAverage, forward=lambda c: c.y if len(c.q) > 1 else c.but(**without))
    wrong = failed(cls, "NS", ["padded_right", "padded_left", "padded_inside"])
    assert len(wrong) == 3
    assert "as a batch of one" in wrong["padded_left"].detail


def refuses_other_padding(call):
    masks = (call.query_padding_mask, call.key_padding_mask)
    assert all(mask is None or (mask[:, 1:] >= mask[:, :-1]).all() for mask in masks)
    return call.y


def test_only_declared_padding_layouts_are_checked():
    cls = variant(sound.PlainAverage, padding_layouts=("right",), forward=refuses_other_padding)
    results = {result.check: result.passed for result in verify_attention(cls, "CS", checks=["padding"], quick=True)}
    assert all(results.values())
    assert not [name for name in results if name.endswith(("left", "inside", "row"))]
    assert {"padded_right", "padding_gradient_right"} <= results.keys()
    cls = variant(sound.CachedAverage, prompt_padding_layouts=("left",))
    results = {result.check: result.passed for result in verify_attention(cls, "CS", checks=["decoding"], quick=True)}
    assert {name: x for name, x in results.items() if "padded" in name} == {"decode_padded_left": True}


class Blocks(sound.PlainAverage):
    """Causal means within blocks of 8 tokens, of whole blocks only."""

    def forward(self, query, **masks):
        blocks = query.unflatten(1, (-1, 8)).flatten(0, 1)
        masks = {name: mask.unflatten(1, (-1, 8)).flatten(0, 1) for name, mask in masks.items()}
        return super().forward(blocks, **masks).unflatten(0, (len(query), -1)).flatten(1, 2)


def test_length_multiple():
    cls = adapter_of(lambda pattern, embed_dim: Blocks(pattern, embed_dim), "blocks")
    wrong = failed(cls, "CS", ["lookahead_gradient", "same_seed", "padded_right"])
    assert len({result.error for result in wrong.values()}) == 1
    assert "declare `length_multiple`" in wrong["same_seed"].detail
    declares = variant(Blocks, length_multiple=8)
    cls = adapter_of(lambda pattern, embed_dim: declares(pattern, embed_dim), "blocks")
    assert failed(cls, "CS", ["causality", "any_length", "lengths_in_turn", "padded_right", "same_seed"]) == {}


# --- causes and consequences -------------------------------------------------------------------------------------


def test_a_leak_is_the_headline_and_no_declaration_is_suggested_for_its_consequences():
    checks = ["lookahead_gradient", "decode_steps", "autocast_lookahead"]
    results = verify_attention(FORGOTTEN_MASK, "CS", checks=checks, quick=True)
    assert not any(result.passed for result in results)
    assert "declare" not in " ".join(result.detail for result in results)
    assert headline(results).startswith("Weighted CS: causal leak: output ")


def test_another_cache_is_one_finding():
    cls = variant(sound.CachedAverage, init_state=lambda c: tuple(c.y.values()))
    wrong = failed(cls, "CS", ["decode_steps", "decode_keeps_state", "state_has_rows", "lookahead_gradient"])
    assert "lookahead_gradient" not in wrong
    assert len({result.error for result in wrong.values()}) == 1
    text = "TypeError: init_state must return a flat dict of tensors, got tuple; convert another cache in init_state"
    assert text in wrong["decode_steps"].detail


class ReadsMemory(sound.PlainCross):
    def forward(self, query, memory):
        return super().forward(query, memory, memory)


def test_a_memory_is_the_value():
    with pytest.raises(UserError, match=r"but 4 were given.*declare claims = Claims\(uses_key=False\)"):
        failed(ReadsMemory, "NC", ["same_seed"])


def changes_setting(call):
    torch.backends.cuda.enable_flash_sdp(False)  # without effect on these numbers, on every processor
    random.random()
    return call.y


def test_changed_setting_is_one_finding_and_restored():
    before, state, state_of_torch = read_settings(), random.getstate(), torch.get_rng_state()
    wrong = failed(variant(sound.PlainAverage, forward=changes_setting), "NS", ["determinism", "state", "batches"])
    assert set(wrong) == {"settings_untouched", "generators_untouched"}
    finding = "outputs: a call changes torch.backends.cuda.flash_sdp_enabled() from True to False"
    assert wrong["settings_untouched"].finding == finding
    assert changes_since(before) == []
    assert random.getstate() == state
    assert torch.equal(torch.get_rng_state(), state_of_torch)


def draws(call):
    return call.but(query=F.dropout(call.query, 0.1))


def new_layer(call):
    return call.set(value=nn.Linear(call.query.shape[-1], call.query.shape[-1])).y


@pytest.mark.parametrize(
    ("forward", "call"), [(draws, r"dropout \(.*`return .*F.dropout"), (new_layer, r"uniform_.*nn.Linear\(")]
)
def test_the_call_that_draws_is_named(forward, call):
    cls = variant(sound.PlainAverage, forward=forward)
    finding = failed(cls, "NS", ["generators_untouched"])["generators_untouched"].finding
    assert finding.startswith("outputs draw random numbers of torch: ")
    assert re.search(call, finding)


def test_written_input_comes_before_its_consequences():
    cls = variant(sound.PlainAverage, forward=lambda c: c.but(query=c.query.mul_(2.0)))
    results = run_checks(Subject("w", cls, Pattern.CS), select_checks(["determinism", "causality"], quick=True))
    first = next(result for result in results if not result.passed)
    assert first.finding == "outputs: a call writes into its input `query`"
