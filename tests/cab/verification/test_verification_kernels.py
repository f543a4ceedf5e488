"""Check group `kernels`: a backend may be a few times less exact than the readable form, and mistakes fail."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from attentions.kernels import chunks
from attentions.kernels.causal_abc import causal_abc
from attentions.kernels.delta_rule import kda_decay
from attentions.kernels.recurrence import recurrence
from attentions.kernels.softmax_attention import softmax
from cab.kernels import Backend
from cab.verification import verify_attention
from cab.verification.on_demand.kernels import Agreement, agreements
from cab.verification.suite import subject_of


def computed(*terms: Any) -> tuple[Tensor, Tensor]:
    wide = [None if x is None else x.float() for x in terms]
    output, state = recurrence.reference(*wide)
    return output.to(terms[0].dtype), state


def scaled(factor: Any) -> Callable[..., Any]:
    def run(*terms: Any) -> tuple[Tensor, Tensor]:
        output, state = computed(*terms)
        return factor * output, state

    return run


def raises(*_: Any) -> Any:
    raise RuntimeError("out of registers\nin a kernel")


def found(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> list[Agreement]:
    monkeypatch.setattr(recurrence, "backends", (Backend("fla", run, device="cpu"),))
    results = agreements(subject_of("gla", "CS", options={}), (64,), (131,))
    return [result for result in results if result.operation == "recurrence"]


def test_the_reference_passes_in_each_precision_with_padding_and_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    results = found(computed, monkeypatch)
    assert len(results) == 4
    assert all(result.passed for result in results)
    for form, dtype in product(("with padding", "in pieces"), ("float32", "bfloat16")):
        assert sum(f"{form} in {dtype}, 64 features, 131 tokens" in result.where for result in results) == 1


def test_the_reference_passes_on_the_last_of_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is computed again in the backward pass, where the readable form has to stand in for the backend again."""
    monkeypatch.setattr(chunks, "CPU_TOKENS", 64)
    results = found(scaled(torch.ones(())), monkeypatch)  # stores one tensor more
    assert len(results) == 4
    assert all(result.passed for result in results)


@pytest.mark.parametrize(
    ("planted", "where", "count"),
    [
        (scaled(1.01), "", 4),
        (scaled(torch.nan), "output", 4),
        (
            lambda q, k, v, decay, s: computed(q, k, v, 1.1 * decay - 0.1 * decay.detach(), s),
            "gradient of log_decay",
            4,
        ),
        (lambda *terms: computed(*terms[:-1], 0 * terms[-1]), "", 2),  # ignores the initial state
        (lambda q, k, *terms: computed(q, torch.where(k == 0.0, 0.1, k), *terms), "", 2),  # reads padding
        (raises, "out of registers ", 4),
    ],
)
def test_planted_mistakes_fail(
    planted: Callable[..., Any], where: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = [result for result in found(planted, monkeypatch) if not result.passed]
    assert len(failed) == count
    assert all(result.where.startswith(where) for result in failed)


def test_an_inexact_backend_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrence, "backends", (Backend("fla", scaled(1.01), device="cpu"),))
    [check] = verify_attention("gla", "CS", checks=["kernels"], quick=True)
    assert not check.passed
    assert check.finding == "recurrence fla is inexact"
    assert "rms_norm fla: not on cuda" in check.detail


@pytest.mark.parametrize(("factor", "passes"), [(1.0, True), (1.02, False)])
def test_softmax_in_bfloat16_is_as_exact_as_its_readable_form(
    factor: float, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By torch's fused kernel of a CPU, named as those of a GPU: it is chosen by name alone."""

    def run(*inputs: Any, **options: Any) -> Tensor:
        return factor * softmax.reference(*inputs, **options)

    backend = Backend("flash", run, device="cpu", declines=lambda *_, **__: "chosen by torch")
    monkeypatch.setattr(softmax, "backends", (backend,))
    results = list(agreements(subject_of("vanilla", "CS", options={}), (64,), (131,)))
    assert len(results) == 4
    assert all(result.passed for result in results) is passes


@pytest.mark.parametrize(("factor", "passes"), [(1.0, True), (1.0001, False)])
def test_a_kernel_without_log1p_passes(factor: float, passes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At initialization the softplus is near 0.01, of which the rounding of 1 + exp(x) is a large part."""

    def run(logits: Tensor, log_rate: Tensor) -> Tensor:
        return -factor * log_rate.exp() * logits.float().exp().add(1.0).log()

    monkeypatch.setattr(kda_decay, "backends", (Backend("fla", run, device="cpu"),))
    results = agreements(subject_of("kda", "CS", options={}), (64,), (131,))
    assert [result.passed for result in results if result.operation == "kda_decay"] == 4 * [passes]


@pytest.mark.parametrize(("factor", "passes"), [(1.0, True), (1.02, False)])
def test_gradients_written_by_hand_are_rounded_in_the_readable_form_too(
    factor: float, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(query: Tensor, key: Tensor, value: Tensor, compress: Tensor, *memory: Any) -> Any:
        copy = compress * 1.0
        if copy.requires_grad and query.dtype is torch.bfloat16:
            copy.register_hook(lambda grad: factor * grad.bfloat16().float())
        return causal_abc.reference(query, key, value, copy, *memory)

    monkeypatch.setattr(causal_abc, "backends", (Backend("fla", run, device="cpu"),))
    results = list(agreements(subject_of("abc", "CS", options={}), (64,), (131,)))
    assert len(results) == 4
    assert all(result.passed for result in results) is passes
