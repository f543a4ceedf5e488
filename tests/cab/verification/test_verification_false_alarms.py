"""Correct modules of other packages do not fail because of how they are tested, and one cause is one finding."""

from __future__ import annotations

import os
import random
import re
import textwrap

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cab import Attention, Pattern, UserError
from cab.cli.main import main
from cab.registry.registries import ATTENTIONS
from cab.verification import run_checks, select_checks, verify_attention
from cab.verification.foreign import adapter_of, subject_class
from cab.verification.growth import _power
from cab.verification.side_effects import changes_since, read_settings
from cab.verification.subject import Subject
from tests.helpers.command import cab
from tests.helpers.verification import sound
from tests.helpers.verification.mutations import failures


def failed(name, pattern="NS", checks=None):
    results = verify_attention(
        subject_class(name) if isinstance(name, str) else name, pattern, checks=checks, quick=True
    )
    assert results
    return {result.check: result for result in results if not result.passed}


@pytest.mark.parametrize("name", ["hf:bert", "hf:roberta"])
def test_encoders_count_positions_themselves(name):
    assert failed(name, checks=["padding_of_nothing", "padded_right", "padded_left", "padded_single_token"]) == {}


@pytest.mark.parametrize(("name", "pattern"), [("gla,vanilla", "CS"), ("local+linear", "NS")])
def test_parts_of_a_stack_decode_by_their_own_steps(name, pattern):
    assert failed(ATTENTIONS.get(name).cls, pattern) == {}


@pytest.mark.parametrize("name", [pytest.param("hf:roformer", marks=pytest.mark.slow), "hf:falcon"])
def test_a_size_that_a_module_refuses_is_skipped_and_named(name):
    cls = subject_class(name)
    [result] = verify_attention(cls, cls.patterns[0], checks=["model_sizes_gradient"], quick=True)
    assert result.passed, result.detail
    assert "; skipped: width 21, heads 3" in result.detail


def test_a_size_is_not_skipped_for_the_whole_contract():
    class Refuses(Attention):
        def attend(self, query, key, value, padding):  # noqa: ARG002
            return value.flatten(3).reshape(*value.shape[:3], -1) * torch.ones(value.shape[-1] // 2 * 2)

    assert "raised at n=70" in failures(Refuses, "NS", ["model_sizes"])["model_sizes"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "hf:gptj:rotary_dim=64",
            "cannot run .* at width 32 with 4 heads: .*rotary_dim=64: .* such as hf:gptj:rotary_dim=8",
        ),
        (
            "hf:llama:hidden_size=33",
            "cannot build hf:llama:hidden_size=33 for pattern CS from embed_dim num_heads: Strict",
        ),
        ("hf:convbert:embedding_size=96", "the configuration has embedding_size=96: set another value"),
    ],
)
def test_configuration_that_cannot_run_is_one_message(name, message):
    cls = subject_class(name)
    with pytest.raises(UserError, match=message):
        verify_attention(cls, cls.patterns[0], checks=["same_seed"], quick=True)


def test_dropout_of_a_whole_layer_is_not_that_of_weights():
    def layer(embed_dim, num_heads, dropout):
        return nn.TransformerEncoderLayer(embed_dim, num_heads, 2 * embed_dim, dropout, batch_first=True)

    results = verify_attention(adapter_of(layer, "layer"), "NS", checks=["dropout"], quick=True)
    assert {result.check: result.passed for result in results} == {"dropout_differs": True}


class Checkpointed(sound.PlainAverage):
    """With the kind of checkpoint that only allows ``backward``."""

    def forward(self, query, **masks):
        return checkpoint(lambda x: super(Checkpointed, self).forward(x, **masks), query, use_reentrant=True)


def test_reentrant_checkpoints():
    checks = ["lookahead_gradient", "training_is_evaluation", "gradient_is_derivative", "context_map"]
    assert failures(Checkpointed, "CS", checks) == {}


@pytest.mark.parametrize("as_factory", [False, True])
@pytest.mark.parametrize("name", ["TokensFirst", "TokensFirstMasked", "Named", "Dict", "Structured"])
def test_layouts_and_outputs_of_other_packages(name, as_factory):
    """A batch in the second dimension, and outputs that are the first of several values."""
    cls = getattr(sound, name)
    factory = adapter_of((lambda embed_dim: cls(embed_dim)) if as_factory else cls, name)
    checks = ["determinism", "contract", "batches", "lengths", "causality", "padding", "gradient_is_derivative"]
    assert failed(factory, "CS", checks) == {}


def test_a_normalized_block_with_a_residual_connection():
    assert failed(sound.Normalized, "NS", ["second_derivative", "context_is_used"]) == {}


class CachesTuple(sound.CachedAverage):
    def init_state(self, batch_size):
        return tuple(super().init_state(batch_size).values())


def test_another_cache_is_one_finding():
    wrong = failed(CachesTuple, "CS", ["decode_steps", "decode_keeps_state", "state_has_rows", "lookahead_gradient"])
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


class CausalOnly(Attention):
    """Linear attention that defines decoding in CS; in CC, the base class stores the prefix."""

    has_constant_size_state = True

    def attend(self, query, key, value, padding):
        weights = F.elu(key) + 1.0
        if padding.key is not None:
            weights = weights.masked_fill(padding.key[:, None, :, None], 0.0)
        if self.pattern is Pattern.CC:
            return (F.elu(query) + 1.0) @ (weights.mT @ value)
        return self.decode(query, key, value, self.init_decode_state(len(query), query), padding)[0]

    def init_decode_state(self, batch_size, like):
        return {"sum": like.new_zeros(batch_size, self.num_heads, 1, self.head_dim)}

    def decode(self, query, key, value, state, padding):  # noqa: ARG002
        if padding.key is not None:
            value = value.masked_fill(padding.key[:, None, :, None], 0.0)
        sums = state["sum"] + value.cumsum(2)
        return sums, {"sum": sums[:, :, -1:]}


@pytest.mark.parametrize("pattern", ["CS", "CC"])
def test_constant_state_is_that_of_the_own_decoding(pattern):
    assert failures(CausalOnly, pattern, ["step_growth"], complexity="n") == {}


def test_growth_is_not_that_of_a_constant_part():
    assert _power({64: 16.9, 256: 97.0, 1024: 386.0}, "KiB", 1.0)[0] == pytest.approx(1.0, abs=0.01)
    assert _power({64: 1.0, 256: 16.0, 1024: 256.0}, "KiB", 1.0)[0] == 2.0
    assert _power({64: 1.0, 256: 1.0, 1024: 16.0}, "KiB", 1.0)[0] == 1.0


@pytest.mark.parametrize("error", ["ImportError('no such package')", "RuntimeError('unhappy')"])
def test_error_in_a_factory_is_a_user_error(error, tmp_path, capsys):
    (tmp_path / "factory.py").write_text(f"def make(embed_dim):\n    raise {error}\n")
    assert main(["verify", f"{tmp_path}/factory.py:make", "--pattern", "NS"]) == 2
    assert f"cannot build make for pattern NS: {error.partition('(')[0]}: " in capsys.readouterr().err


class ChangesSetting(sound.PlainAverage):
    def forward(self, query, **masks):
        torch.backends.cuda.enable_flash_sdp(False)  # without effect on these numbers, on every processor
        random.random()
        return super().forward(query, **masks)


def test_changed_setting_is_one_finding_and_restored():
    before, state = read_settings(), random.getstate()
    wrong = failed(ChangesSetting, "NS", ["determinism", "state", "batches"])
    assert set(wrong) == {"settings_untouched", "generators_untouched"}
    finding = "outputs: a call changes torch.backends.cuda.flash_sdp_enabled() from True to False"
    assert wrong["settings_untouched"].finding == finding
    assert changes_since(before) == []
    assert random.getstate() == state


class DrawsAlways(sound.PlainAverage):
    def forward(self, query, **masks):
        return super().forward(F.dropout(query, 0.1), **masks)


class NewLayer(sound.PlainAverage):
    def forward(self, query, **masks):
        self.value = nn.Linear(query.shape[-1], query.shape[-1])
        return super().forward(query, **masks)


@pytest.mark.parametrize(
    ("cls", "call"), [(DrawsAlways, r"dropout \(.*`return .*F.dropout"), (NewLayer, r"uniform_.*nn.Linear\(")]
)
def test_the_call_that_draws_is_named(cls, call):
    finding = failed(cls, "NS", ["generators_untouched"])["generators_untouched"].finding
    assert finding.startswith("outputs draw random numbers of torch: ")
    assert re.search(call, finding)


class WritesIntoQuery(sound.PlainAverage):
    def forward(self, query, **masks):
        return super().forward(query.mul_(2.0), **masks)


def test_written_input_comes_before_its_consequences():
    results = list(
        run_checks(Subject("w", WritesIntoQuery, Pattern.CS), select_checks(["determinism", "causality"], quick=True))
    )
    first = next(result for result in results if not result.passed)
    assert first.finding == "outputs: a call writes into its input `query`"


def test_side_issues_come_last():
    names = [check.name for check in select_checks()]
    assert names[0] == "inputs_untouched"
    assert names[-2:] == ["several_threads", "default_dtype"]


class IgnoresSource(sound.PlainCross):
    def forward(self, query, key=None, value=None, **masks):  # noqa: ARG002
        return self.maps[0](query)


def test_an_output_without_context_is_not_a_matter_of_declaration():
    result = failed(IgnoresSource, "NC", ["context_is_used"])["context_is_used"]
    assert result.finding == "output 257 of n=258 does not depend on the source (m=132)"
    assert "declare" not in result.detail


@pytest.mark.slow
def test_results_before_a_crash_of_the_process_are_printed(tmp_path):
    """Each row of CSV is flushed; the line that crashed is shown."""
    (tmp_path / "crashing.py").write_text(
        textwrap.dedent("""
        import os
        from torch import nn

        class Crashing(nn.Module):
            def __init__(self, embed_dim):
                super().__init__()
                self.linear = nn.Linear(embed_dim, embed_dim)

            def forward(self, query, **masks):
                if query.shape[1] == 1:
                    os.abort()
                return self.linear(query)
        """)
    )
    command = [
        "verify",
        "crashing.py:Crashing",
        "--pattern",
        "NS",
        "--quick",
        "--checks",
        "inputs_untouched,length_one",
    ]
    process = cab(*command, "--csv", cwd=tmp_path)
    assert process.returncode < 0
    assert process.stdout.splitlines()[1].startswith("Crashing,NS,inputs_untouched,true,")
    assert "crashing.py" in process.stderr
    assert f"{os.sep}verification{os.sep}" in process.stderr
