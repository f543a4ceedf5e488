"""`cab verify`: names, files, tables, exit statuses."""

import abc
import re
import sys

import pytest

from cab.registry.registries import ATTENTIONS
from tests.helpers.command import ROOT

CHECKS = ["--quick", "--checks", "lookahead_gradient,lookahead_perturbation,lookahead_length,same_seed"]

MINE = '''
import torch
from torch import nn
from scales import SCALE

class Mean(nn.Module):
    """The mean so far, and what comes after it when `leak` is set."""
    leak = 0.0

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        assert embed_dim % num_heads == 0
        self.value = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, key=None, value=None, *, query_padding_mask=None, key_padding_mask=None):
        v = self.value(query) * SCALE
        mean = v.cumsum(1) / torch.arange(1, v.shape[1] + 1)[:, None]
        return mean + self.leak * v.mean(1, keepdim=True)

class Leaky(Mean):
    leak = 1e-3
'''


@pytest.fixture
def file(tmp_path):
    (tmp_path / "scales.py").write_text("SCALE = 2.0\n")
    path = tmp_path / "mine_to_verify.py"
    path.write_text(MINE)
    return path


def test_csv_of_several_patterns(cab):
    rows = cab("verify", "none", "vanilla", "--pattern", "NS,CC", "--checks", "same_seed", "--csv").rows
    assert [*rows[0]] == ["attention", "pattern", "check", "passed", "detail"]
    expected = [[name, pattern, "same_seed", "true"] for name in ("none", "vanilla") for pattern in ("NS", "CC")]
    assert [[*row.values()][:4] for row in rows] == expected


def test_a_sound_class_and_a_leak_of_a_thousandth_in_a_file(cab, file):
    out, err = cab("verify", f"{file}:Mean", "--pattern", "CS", *CHECKS)
    assert out.endswith("4 checks, 0 failed\n")
    assert "decoding is not verified" in err
    out, _ = cab("verify", f"{file}:Leaky", "--pattern", "CS", *CHECKS, status=1)
    determinism, causality, headline, number, advice = out.splitlines()
    assert "FAILED" not in determinism
    assert "FAILED lookahead_gradient: " in causality
    assert causality.endswith("; also lookahead_perturbation, lookahead_length")
    leak = r"Leaky CS: causal leak: output (\d+) depends on token (\d+), first in Leaky, after value "
    assert re.fullmatch(leak + r"\(lookahead_gradient\); 2 other .*", headline)
    assert number == "4 checks, 3 failed"
    assert "`--pattern CS --checks lookahead_gradient`" in advice


def test_registered_class_in_a_file_is_verified_in_what_it_claims(cab, tmp_path, monkeypatch):
    monkeypatch.setattr(ATTENTIONS, "_entries", {entry.name: entry for entry in ATTENTIONS})
    path = tmp_path / "registers.py"
    path.write_text(
        "from attentions.softmax import VanillaAttention\n"
        "from cab import register_attention\n"
        "@register_attention('test_mine', patterns='NS NC', complexity='n^2', paper='-')\n"
        "class Mine(VanillaAttention):\n"
        "    pass\n"
    )
    rows = cab("verify", f"{path}:Mine", "--checks", "same_seed", "--csv").rows
    assert [(row["attention"], row["pattern"]) for row in rows] == [("Mine", "NS"), ("Mine", "NC")]


def test_a_file_never_replaces_another_module(cab, tmp_path):
    standard = sys.modules["csv"]
    for folder, name in (("one", "One"), ("two", "Two")):
        path = tmp_path / folder / "csv.py"
        path.parent.mkdir()
        path.write_text(MINE.replace("from scales import SCALE", "SCALE = 1").replace("Mean", name))
        cab("verify", f"{path}:{name}", "--pattern", "CS", "--checks", "same_seed")
    assert sys.modules["csv"] is standard


def test_a_file_of_a_registered_package_is_what_the_package_imports(cab):
    rows = cab("verify", f"{ROOT}/attentions/abc.py:ABCAttention", "--checks", "same_seed", "--csv").rows
    assert {row["attention"] for row in rows} == {"ABCAttention"}
    assert sys.modules["abc"] is abc


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ("vanilla positions=alibi window=5", ["vanilla positions=alibi window=5"]),
        ("[linear,gla] gla.short_convolution=4", ["gla short_convolution=4", "linear,gla gla.short_convolution=4"]),
    ],
)
def test_options_are_verified_alone_and_in_the_stack(arguments, names, cab):
    rows = cab("verify", *arguments.split(), "--pattern", "CS", "--checks", "lookahead_length", "--csv").rows
    assert [row["attention"] for row in rows][-len(names) :] == names
    assert {(row["pattern"], row["check"], row["passed"]) for row in rows} == {("CS", "lookahead_length", "true")}
