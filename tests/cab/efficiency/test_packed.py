"""Packed sequences: their lengths, and what packed and padded inputs have in common."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from cab import Pattern
from cab.cli.efficiency import DISTRIBUTIONS
from cab.cli.main import main
from cab.efficiency.packed import packed_inputs, padded_inputs, sequence_lengths
from cab.efficiency.setting import Setting
from cab.efficiency.subjects import AttentionSubject
from cab.efficiency.workload import bound

SMALL = Setting(batch_size=3, embed_dim=8, num_heads=2, packed="log-normal")


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize(("longest", "total"), [(512, 4096), (64, 64), (1, 3)])
def test_lengths_add_up_and_stay_the_same(distribution: str, longest: int, total: int) -> None:
    lengths = sequence_lengths(distribution, longest, total)
    assert sum(lengths) == total
    assert 1 <= min(lengths) <= max(lengths) <= longest
    assert lengths == sequence_lengths(distribution, longest, total)


def test_distributions_differ() -> None:
    uniform, conversation, one_long = (sequence_lengths(name, 1024, 2**20) for name in DISTRIBUTIONS)
    assert sum(uniform) / len(uniform) == pytest.approx(512, rel=0.1)
    assert sorted(conversation)[len(conversation) // 2] == pytest.approx(128, rel=0.1)
    assert one_long[0] == 1024
    assert set(one_long[1:]) == {64}


@pytest.mark.parametrize("pattern", [Pattern.CS, Pattern.NC])
def test_packed_and_padded_inputs_are_the_same_sequences(pattern: Pattern) -> None:
    module = AttentionSubject.parse("linear").build(pattern, SMALL).eval()
    outputs = []
    for make in (packed_inputs, padded_inputs):
        torch.manual_seed(1)
        inputs = make(pattern, 16, SMALL)
        output = bound(module, inputs)()
        outputs.append(output[~inputs["query_padding_mask"]] if make is padded_inputs else output)
    torch.testing.assert_close(*outputs)


def test_each_attention_is_measured_packed_and_padded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "costs.csv"
    sizes = ["--batch-size", "2", "--embed-dim", "8", "--num-heads", "2", "--device", "cpu", "--lengths", "32"]
    plan = ["--packed", "one-long", "--repeats", "1", "--no-verify", "--out", str(out)]
    assert main(["efficiency", "linear", *sizes, *plan]) == 0
    costs = pd.read_csv(out).set_index("attention")
    assert list(costs.index) == ["vanilla", "vanilla@padded", "eager", "eager@padded", "linear", "linear@padded"]
    assert set(costs["packed"]) == {"one-long"}
    packed, padded = costs.loc["linear"], costs.loc["linear@padded"]
    assert padded["kind"] == "padded"
    assert packed["speedup_vs_padded"] == pytest.approx(padded["seconds"] / packed["seconds"], rel=1e-4)
    assert packed["bytes_vs_padded"] == pytest.approx(packed["bytes"] / padded["bytes"], rel=1e-4)
    assert packed["bytes"] < padded["bytes"]
    assert pd.isna(padded["speedup_vs_padded"])
    assert "one-long lengths" in capsys.readouterr().out
