"""Outputs, gradients and initial parameters of public code, computed once and stored in golden files.

An attention without public code has a row in uncompared.csv: the reason, and one number of its own per pattern.
"""

import csv
import math

import pytest
import torch

from cab import build_attention
from cab.registry.registries import ATTENTIONS
from tests.helpers.golden_numbers import FOLDER, Golden, cases

CASES = cases()
START = 0.05
"""Largest difference between quantiles of initial parameters, relative to their range."""
UNCOMPARED = {row["attention"]: row for row in csv.DictReader((FOLDER / "uncompared.csv").open(encoding="utf-8"))}


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_those_of_public_code(case):
    golden = Golden.read(CASES[case], case)
    assert golden.about["source"]
    assert golden.about["attention"] == CASES[case].stem
    if "output" in golden.arrays:
        distances, limit = golden.distances(), golden.about["tolerance"]
        assert limit <= 1e-9 or (golden.about["reason"] and limit <= 1e-6)
    else:
        distances, limit = golden.start_distances(), START
    assert max(distances.values()) < limit, f"{golden.about['source']}: {distances}"


def test_every_attention_is_compared_or_has_a_reason():
    compared = {path.stem for case, path in CASES.items() if not case.endswith("_start")}
    assert all(row["reason"] for row in UNCOMPARED.values())
    assert not compared & UNCOMPARED.keys()
    missing = set(ATTENTIONS.names()) - compared - UNCOMPARED.keys()
    assert not missing, f"add golden numbers (tools/README.md) or a row of {FOLDER / 'uncompared.csv'}"
    assert compared | UNCOMPARED.keys() <= set(ATTENTIONS.names())


def training_step(name: str, pattern: str) -> float:
    """Return outputs and gradients of a training step as one projection onto fixed random numbers."""
    torch.manual_seed(0)
    module = build_attention(name, pattern=pattern, embed_dim=32, num_heads=4).double()
    lengths = (37, 45, 45) if module.pattern.is_cross else (37,)
    inputs = [torch.randn(2, length, 32, dtype=torch.float64, requires_grad=True) for length in lengths]
    output = module(*inputs)
    leaves = [*inputs, *module.parameters()]
    gradients = torch.autograd.grad(output, leaves, torch.randn_like(output), materialize_grads=True)
    return sum((x * torch.randn_like(x)).sum().item() for x in (output, *gradients))


@pytest.mark.parametrize("name", UNCOMPARED)
def test_numbers_without_public_code_do_not_change(name):
    found = {str(pattern): training_step(name, str(pattern)) for pattern in ATTENTIONS.get(name).patterns}
    stored = {pattern: float(UNCOMPARED[name][pattern] or "nan") for pattern in found}
    assert found == pytest.approx(stored, rel=1e-4), f"if intended, write them into {FOLDER / 'uncompared.csv'}"


@pytest.mark.parametrize("case", [case for case in CASES if not case.endswith("_start")])
def test_initial_parameters_have_the_recorded_size(case):
    """Recorded are initial parameters with noise of half their size, 0.15 for zeros (tools/golden/record.py)."""
    golden = Golden.read(CASES[case], case)
    recorded = golden.named("state.")
    for name, parameter in golden.build().named_parameters():
        size = math.sqrt(1.25) * parameter.square().mean().sqrt().item() or 0.15
        if parameter.numel() >= 60:
            assert 1 / 1.7 < recorded[name].square().mean().sqrt().item() / size < 1.7, name
