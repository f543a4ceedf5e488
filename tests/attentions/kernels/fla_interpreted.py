"""The kernels of flash-linear-attention against our forms, under Triton's interpreter: run by test_fla_kernels.py.

The interpreter has to be chosen before Triton is loaded, so this runs in a process of its own (TRITON_INTERPRET=1).
"""

import pytest
import torch

from attentions.kernels import fla_kernels
from cab.efficiency.operations import count_operations
from cab.verification.on_demand.kernels import LENGTHS, agreements
from cab.verification.suite import subject_of
from tests.attentions.kernels.interpreted_errors import SUBJECTS
from tests.helpers.attentions.interpreter import interpret_fla, run_on_a_cpu

NIGHTLY = (pytest.mark.slow, pytest.mark.nightly)
MARKS = {"deltanet": (), "mla": (), **dict.fromkeys(("gla", "kda", "forgetting", "abc"), pytest.mark.slow)}
"""Of attentions that run more often than each night: the shortest, and others of each kind of operation."""
NAMES = [pytest.param(name, marks=MARKS.get(name, NIGHTLY)) for name in SUBJECTS]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of the folder's: the kernels run on a CPU, and uncleared memory, of which they read some, has no NaN."""
    interpret_fla(monkeypatch)


def test_who_counts_operators_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fla_kernels, "FACTORS", torch.float32)
    query, key, value = torch.randn(3, 1, 2, 5, 18)
    decay, state = -torch.rand(1, 2, 5), torch.randn(1, 2, 18, 18)
    counted = count_operations(lambda: fla_kernels.recurrence(query, key, value, decay, state))
    assert counted.foreign == {"flash-linear-attention"}


@pytest.mark.parametrize("width", [64, pytest.param(128, marks=NIGHTLY)])
@pytest.mark.parametrize("name", NAMES)
def test_backends_are_as_exact_as_readable_forms(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each operation of flash-linear-attention has an attention: in two precisions, with a state, all gradients."""
    subject = subject_of(name, SUBJECTS[name], options={})  # imports its operations
    run_on_a_cpu("fla", monkeypatch)
    found = list(agreements(subject, (width,), LENGTHS[:1]))
    assert found
    assert all(result.passed for result in found), found
