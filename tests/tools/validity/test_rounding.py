"""Decoding: rounding of its state, by format, by position and in scores; its distance from one call."""

import csv

import pytest
import torch
from torch import Tensor

from cab.analysis.subject import subject_of
from tools.validity.rollout import ledger, main
from tools.validity.rounding import BITS, bits_needed, rounded, rounded_scores, rounding_errors, untrained

PROBE = ["task=probe", "dataset=recall", "backbone=mixer", "preset=smoke", "device=cpu"]


def error(x: Tensor, number_format: str) -> float:
    return float((rounded(x, number_format) - x).abs().max())


def test_representable_numbers_stay_exact():
    whole = torch.arange(-127.0, 128.0).reshape(1, 1, 255)
    assert error(whole * 0.25, "int8") == 0
    assert error(2.0 ** torch.arange(-100.0, 100.0).reshape(1, 1, 200), "bfloat16") == 0
    assert error(448.0 * torch.tensor([[[1.0, 0.5, 2.0**-14]]]), "fp8") == 0
    assert error(whole + 1e-3, "float32") == 0


@pytest.mark.parametrize("number_format", BITS)
def test_counts_masks_zeros_and_infinite_values_stay_unchanged(number_format):
    for x in (torch.arange(1000), torch.tensor([[True, False]]), torch.zeros(2, 3, 4), torch.zeros(2, 3, 0, 4)):
        assert torch.equal(rounded(x, number_format), x)
    mixed = rounded(torch.tensor([[[float("-inf"), 127.0, 0.0, float("inf")]]]), number_format)
    assert torch.equal(mixed, torch.tensor([[[float("-inf"), 127.0, 0.0, float("inf")]]]))


def test_every_head_of_every_sequence_has_its_own_scale():
    heads = torch.randn(2, 3, 4, 5)
    louder = heads * torch.tensor([1.0, 1e6, 1e-6])[:, None, None]
    for number_format in ("int8", "fp8"):
        loud, normal = (rounded(x, number_format) / x for x in (louder, heads))
        torch.testing.assert_close(loud, normal, rtol=1e-3, atol=0)


def test_errors_grow_in_a_sum_and_not_in_a_decaying_state():
    linear, gated = (rounding_errors(untrained(name), rows=2, steps=600) for name in ("linear", "gla"))
    assert list(linear) == list(BITS)
    assert list(linear["int8"]) == [64, 512]
    assert linear["bfloat16"][512] > 5 * linear["bfloat16"][64]
    assert gated["bfloat16"][512] < 2 * gated["bfloat16"][64]
    assert bits_needed(linear) == 32
    assert bits_needed(gated) == 8


def test_the_layers_decode_with_the_rounded_state(monkeypatch):
    subject = subject_of([*PROBE, "attention=gla", "pattern=CS"])
    tokens = torch.randint(1, 8, (2, 6, 1))
    expected = subject.network(tokens)
    found = {}

    def evaluate(network: torch.nn.Module, _batches: object) -> dict[str, float]:
        found[len(found)] = network(tokens)
        return {}

    monkeypatch.setattr(subject.cell.task, "evaluate", evaluate)
    rounded_scores(subject)
    torch.testing.assert_close(found[0], expected)
    assert all((found[n] - expected).abs().max() > 1e-6 for n in (1, 2, 3))
    assert torch.equal(subject.network(tokens), expected)


# --- the ledger of rollouts: distances of decoding from one call ----------------------------------------------------


def test_steps_in_float32_are_one_rounding_from_the_row_and_a_batch_of_bfloat16_is_the_row():
    fine, coarse = (ledger("gla", dtype, seed=0, length=96, device="cpu") for dtype in ("float32", "bfloat16"))
    assert 1 < float(str(fine["steps"])) < 100
    assert 0.5 < float(str(coarse["row_error"])) < 5
    assert (coarse["batch"], coarse["packed_equal"]) == (0, 1)
    assert 0 < float(str(fine["kl"])) <= float(str(fine["kl_max"])) < 1e-9


def test_a_file_is_completed_and_not_measured_again(tmp_path, capsys):
    words = ["--out", str(tmp_path / "cpu.csv"), "--seeds", "0", "--length", "64", "linear"]
    main(words)
    text = (tmp_path / "cpu.csv").read_text()
    capsys.readouterr()
    main([*words, "local"])
    rows = list(csv.DictReader((tmp_path / "cpu.csv").read_text().splitlines()))
    assert (tmp_path / "cpu.csv").read_text().startswith(text)
    assert [(row["attention"], row["dtype"]) for row in rows][2:] == [("local", "float32"), ("local", "bfloat16")]
    assert len(capsys.readouterr().out.splitlines()) == 2
