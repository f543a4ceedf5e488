"""Packed sequences: their lengths, and what packed and padded inputs have in common."""

import pytest
import torch

from cab import Pattern
from cab.cli.efficiency import DISTRIBUTIONS
from cab.efficiency.packed import packed_inputs, padded_inputs, sequence_lengths
from cab.efficiency.setting import Setting
from cab.efficiency.subjects import AttentionSubject
from cab.efficiency.workload import bound

SMALL = Setting(batch_size=3, embed_dim=8, num_heads=2, packed="log-normal")


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize(("longest", "total"), [(512, 4096), (64, 64), (1, 3)])
def test_lengths_add_up_and_stay_the_same(distribution, longest, total):
    lengths = sequence_lengths(distribution, longest, total)
    assert sum(lengths) == total
    assert 1 <= min(lengths) <= max(lengths) <= longest
    assert lengths == sequence_lengths(distribution, longest, total)


def test_distributions_differ():
    uniform, conversation, one_long = (sequence_lengths(name, 1024, 2**16) for name in DISTRIBUTIONS)
    assert sum(uniform) / len(uniform) == pytest.approx(512, rel=0.1)
    assert sorted(conversation)[len(conversation) // 2] == pytest.approx(128, rel=0.1)
    assert one_long[0] == 1024
    assert set(one_long[1:]) == {64}


@pytest.mark.parametrize("pattern", [Pattern.CS, Pattern.NC])
def test_packed_and_padded_inputs_are_the_same_sequences(pattern):
    module = AttentionSubject.parse("linear").build(pattern, SMALL).eval()
    outputs = []
    for make in (packed_inputs, padded_inputs):
        torch.manual_seed(1)
        inputs = make(pattern, 16, SMALL)
        output = bound(module, inputs)()
        outputs.append(output[~inputs["query_padding_mask"]] if make is padded_inputs else output)
    torch.testing.assert_close(*outputs)


def test_each_attention_is_measured_packed_and_padded(efficiency):
    rows, printed = efficiency("linear", "--lengths", 32, "--repeats", 1, "--packed", "one-long")
    labels = ["vanilla", "vanilla@padded", "eager", "eager@padded", "linear", "linear@padded"]
    assert [row["attention"] for row in rows] == labels
    assert {row["packed"] for row in rows} == {"one-long"}
    packed, padded = rows[-2:]
    assert padded["kind"] == "padded"
    speedup, ratio = float(padded["seconds"]) / float(packed["seconds"]), int(packed["bytes"]) / int(padded["bytes"])
    assert float(packed["speedup_vs_padded"]) == pytest.approx(speedup, rel=1e-4)
    assert float(packed["bytes_vs_padded"]) == pytest.approx(ratio, rel=1e-4)
    assert ratio < 1
    assert padded["speedup_vs_padded"] == ""
    assert "one-long lengths" in printed.out
