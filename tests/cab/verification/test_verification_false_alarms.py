"""Correct modules of other packages do not fail because of how they are tested, and one cause is one finding."""

from __future__ import annotations

import os
import random
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cab import Pattern, UserError
from cab.registry.registries import ATTENTIONS
from cab.verification import run_checks, select_checks, verify_attention
from cab.verification.foreign import adapter_of, subject_class
from cab.verification.growth import _power
from cab.verification.side_effects import changes_since, read_settings
from cab.verification.subject import Subject
from tests.helpers.command import cab
from tests.helpers.verification import sound, sound_learning
from tests.helpers.verification.mutations import failures, variant


def failed(name, pattern="NS", checks=None):
    cls = subject_class(name) if isinstance(name, str) else name
    results = verify_attention(cls, pattern, checks=checks, quick=True)
    assert results
    return {result.check: result for result in results if not result.passed}


@pytest.mark.parametrize("name", ["hf:bert", "hf:roberta"])
def test_encoders_count_positions_themselves(name):
    assert failed(name, checks=["padding_of_nothing", "padded_right", "padded_left", "padded_single_token"]) == {}


@pytest.mark.parametrize(("name", "pattern"), [("gla,vanilla", "CS"), ("local+linear", "NS")])
def test_parts_of_a_stack_decode_by_their_own_steps(name, pattern):
    checks = ["determinism", "state", "batches", "causality", "padding", "decoding", "branching"]
    assert failed(ATTENTIONS.get(name).cls, pattern, checks) == {}


@pytest.mark.parametrize("name", [pytest.param("hf:roformer", marks=pytest.mark.slow), "hf:falcon"])
def test_a_size_that_a_module_refuses_is_skipped_and_named(name):
    cls = subject_class(name)
    [result] = verify_attention(cls, cls.patterns[0], checks=["model_sizes_gradient"], quick=True)
    assert result.passed, result.detail
    assert "; skipped: width 21, heads 3" in result.detail


def test_dropout_of_a_whole_layer_is_not_that_of_weights():
    def layer(embed_dim, num_heads, dropout):
        return nn.TransformerEncoderLayer(embed_dim, num_heads, 2 * embed_dim, dropout, batch_first=True)

    results = verify_attention(adapter_of(layer, "layer"), "NS", checks=["dropout"], quick=True)
    assert {result.check: result.passed for result in results} == {"dropout_differs": True}


def test_reentrant_checkpoints():
    """The kind of checkpoint that only allows ``backward``."""
    cls = variant(
        sound.PlainAverage, forward=lambda c: checkpoint(lambda x: c.but(query=x), c.query, use_reentrant=True)
    )
    checks = ["lookahead_gradient", "training_is_evaluation", "gradient_is_derivative", "context_map"]
    assert failures(cls, "CS", checks) == {}


LAYOUT = ["determinism", "contract", "batches", "lengths", "causality", "padding", "gradient_is_derivative"]


@pytest.mark.parametrize(
    ("cls", "checks"),
    [
        (sound.TokensFirst, LAYOUT),
        (sound.TokensFirstMasked, LAYOUT),
        (lambda embed_dim: sound.TokensFirst(embed_dim), ["determinism"]),
        (lambda embed_dim: sound.TokensFirstMasked(embed_dim), ["padding"]),
        (sound.Contained, ["determinism", "gradient_is_derivative"]),
        (variant(sound.Contained, container=dict), ["determinism"]),
        (variant(sound.Contained, container=sound.Structure), ["determinism"]),
        (lambda embed_dim: sound.Contained(embed_dim), ["determinism"]),
    ],
)
def test_layouts_and_outputs_of_other_packages(cls, checks):
    """A batch in the second dimension, and outputs that are the first of several values; classes and factories."""
    assert failed(adapter_of(cls, "other"), "CS", checks) == {}


def test_a_normalized_block_with_a_residual_connection():
    """It adds little to its input, and its outputs have a constant sum."""
    cls = variant(sound.PlainAverage, forward=lambda c: F.layer_norm(c.query + 0.1 * c.result, c.query.shape[-1:]))
    assert failed(cls, "NS", ["second_derivative", "context_is_used"]) == {}


def test_another_cache_is_one_finding():
    cls = variant(sound.CachedAverage, init_state=lambda c: tuple(c.result.values()))
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


class Blocks(sound.PlainAverage):
    """Causal means within blocks of 8 tokens, of whole blocks only."""

    def forward(self, query, **masks):
        blocks = query.unflatten(1, (-1, 8)).flatten(0, 1)
        masks = {name: mask.unflatten(1, (-1, 8)).flatten(0, 1) for name, mask in masks.items()}
        return super().forward(blocks, **masks).unflatten(0, (len(query), -1)).flatten(1, 2)


def test_length_multiple(monkeypatch):
    cls = adapter_of(lambda pattern, embed_dim: Blocks(pattern, embed_dim), "blocks")
    wrong = failed(cls, "CS", ["lookahead_gradient", "same_seed", "padded_right"])
    assert len({result.error for result in wrong.values()}) == 1
    assert "declare `length_multiple`" in wrong["same_seed"].detail
    monkeypatch.setattr(Blocks, "length_multiple", 8, raising=False)
    cls = adapter_of(lambda pattern, embed_dim: Blocks(pattern, embed_dim), "blocks")
    assert failed(cls, "CS", ["causality", "any_length", "lengths_in_turn", "padded_right", "same_seed"]) == {}


@pytest.mark.parametrize("pattern", ["CS", "CC"])
def test_constant_state_is_that_of_the_own_decoding(pattern):
    """In CC, the base class stores the prefix."""
    assert failures(variant(sound_learning.Gated, encode_source=None), pattern, ["step_growth"]) == {}


def test_growth_is_not_that_of_a_constant_part():
    assert _power({64: 16.9, 256: 97.0, 1024: 386.0}, "KiB", 1.0)[0] == pytest.approx(1.0, abs=0.01)
    assert _power({64: 1.0, 256: 16.0, 1024: 256.0}, "KiB", 1.0)[0] == 2.0
    assert _power({64: 1.0, 256: 1.0, 1024: 16.0}, "KiB", 1.0)[0] == 1.0


def changes_setting(call):
    torch.backends.cuda.enable_flash_sdp(False)  # without effect on these numbers, on every processor
    random.random()
    return call.result


def test_changed_setting_is_one_finding_and_restored():
    before, state, state_of_torch = read_settings(), random.getstate(), torch.get_rng_state()
    wrong = failed(variant(sound.PlainAverage, forward=changes_setting), "NS", ["determinism", "state", "batches"])
    assert set(wrong) == {"settings_untouched", "generators_untouched"}
    finding = "outputs: a call changes torch.backends.cuda.flash_sdp_enabled() from True to False"
    assert wrong["settings_untouched"].finding == finding
    assert changes_since(before) == []
    assert random.getstate() == state
    assert torch.equal(torch.get_rng_state(), state_of_torch)


def new_layer(call):
    return call.set(value=nn.Linear(call.query.shape[-1], call.query.shape[-1])).result


@pytest.mark.parametrize(
    ("forward", "call"),
    [
        (lambda c: c.but(query=F.dropout(c.query, 0.1)), r"dropout \(.*`.*F.dropout"),
        (new_layer, r"uniform_.*nn.Linear\("),
    ],
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


def test_an_output_without_context_is_not_a_matter_of_declaration():
    cls = variant(sound.PlainCross, forward=lambda c: c.maps[0](c.query))
    result = failed(cls, "NC", ["context_is_used"])["context_is_used"]
    assert result.finding == "output 257 of n=258 does not depend on the source (m=132)"
    assert "declare" not in result.detail


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
