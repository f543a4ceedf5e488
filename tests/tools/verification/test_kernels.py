"""The check of backends against references finds planted mistakes, and no mistake in the reference itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attentions.kernels.recurrence import recurrence
from cab.kernels import Backend
from tools.verification.kernels import Agreement, check_backend

reference = recurrence.reference


def one_percent_off(*terms: Tensor) -> tuple[Tensor, Tensor]:
    output, state = reference(*terms)
    return 1.01 * output, state


def wrong_gradient_of_the_decay(*terms: Any) -> tuple[Tensor, Tensor]:
    query, key, value, decay, state = terms
    return reference(query, key, value, None if decay is None else 1.1 * decay - 0.1 * decay.detach(), state)


def nan_with_decays_per_feature(*inputs: Any) -> Any:
    output, state = reference(*inputs)
    return (output * torch.nan, state) if inputs[3] is not None and inputs[3].dim() == 4 else (output, state)


def ignores_the_initial_state(*terms: Any) -> tuple[Tensor, Tensor]:
    return reference(*terms[:-1], 0 * terms[-1])


def check(run: Any, dtype: torch.dtype = torch.float32) -> Agreement:
    found = check_backend(recurrence, Backend("fla", run), "cpu", dtype, 16, (70,))
    assert found is not None
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_reference_passes(dtype: torch.dtype) -> None:
    assert check(reference, dtype).passed


@pytest.mark.parametrize(
    ("planted", "where"),
    [
        (one_percent_off, ""),
        (wrong_gradient_of_the_decay, "gradient 3"),
        (ignores_the_initial_state, "gradient"),
        (nan_with_decays_per_feature, "output"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_planted_mistakes_fail(planted: Any, where: str, dtype: torch.dtype) -> None:
    found = check(planted, dtype)
    assert not found.passed
    assert found.where.startswith(where) or dtype is torch.bfloat16
