"""Check group `kernels`: a backend may be a few times less exact than the readable form, and mistakes fail."""

import functools
from itertools import product

import pytest
import torch

from attentions.kernels import chunks
from attentions.kernels.causal_abc import causal_abc
from attentions.kernels.delta_rule import kda_decay
from attentions.kernels.recurrence import recurrence
from attentions.kernels.softmax_attention import softmax
from cab.flash_linear_attention import SHORTEST
from cab.kernels import Backend
from cab.verification import verify_attention
from cab.verification.on_demand import kernels
from cab.verification.on_demand.kernels import agreements
from cab.verification.suite import subject_of


def computed(*terms):
    output, state = recurrence.reference(*[None if x is None else x.float() for x in terms])
    return output.to(terms[0].dtype), state


def scaled(factor):
    def run(*terms):
        output, state = computed(*terms)
        return factor * output, state

    return run


def raises(*_):
    raise RuntimeError("out of registers\nin a kernel")


def found(run, monkeypatch, operation=recurrence, attention="gla", **more):
    """The agreements of an operation with ``run`` as its only backend: forms with padding and in pieces, two dtypes."""
    monkeypatch.setattr(operation, "backends", (Backend("fla", run, device="cpu", **more),))
    every = agreements(subject_of(attention, "CS", options={}), (64,), (131,))
    results = [result for result in every if result.operation == operation.name]
    assert len(results) == 4
    return results


def test_the_reference_passes_in_each_precision_with_padding_and_in_pieces(monkeypatch):
    results = found(computed, monkeypatch)
    assert all(result.passed for result in results)
    for form, dtype in product(("with padding", "in pieces"), ("float32", "bfloat16")):
        assert sum(f"{form} in {dtype}, 64 features, 131 tokens" in result.where for result in results) == 1


def test_the_reference_passes_on_the_last_of_several_chunks(monkeypatch):
    """Which is computed again in the backward pass, where the readable form has to stand in for the backend again."""
    monkeypatch.setattr(chunks, "CPU_TOKENS", 64)
    assert all(result.passed for result in found(scaled(torch.ones(())), monkeypatch))  # stores one tensor more


@pytest.mark.parametrize(
    ("planted", "where", "count"),
    [
        (scaled(1.01), "", 4),
        (scaled(torch.nan), "output", 4),
        (lambda q, k, v, g, s: computed(q, k, v, 1.1 * g - 0.1 * g.detach(), s), "gradient of log_decay", 4),
        (lambda *terms: computed(*terms[:-1], 0 * terms[-1]), "", 2),  # ignores the initial state
        (lambda q, k, *terms: computed(q, torch.where(k == 0.0, 0.1, k), *terms), "", 2),  # reads padding
        (raises, "out of registers ", 4),
    ],
)
def test_planted_mistakes_fail(planted, where, count, monkeypatch):
    failed = [result for result in found(planted, monkeypatch) if not result.passed]
    assert len(failed) == count
    assert all(result.where.startswith(where) for result in failed)


def test_an_inexact_backend_fails_the_check(monkeypatch):
    monkeypatch.setattr(recurrence, "backends", (Backend("fla", scaled(1.01), device="cpu"),))
    [check] = verify_attention("gla", "CS", checks=["kernels"], quick=True)
    assert not check.passed
    assert check.finding == "recurrence fla is inexact"
    assert "rms_norm fla: not on cuda" in check.detail


def times_softmax(factor, *inputs, **options):
    """By torch's fused kernel of a CPU, named as those of a GPU: it is chosen by name alone."""
    return factor * softmax.reference(*inputs, **options)


def without_log1p(factor, logits, log_rate):
    """At initialization the softplus is near 0.01, of which the rounding of 1 + exp(x) is a large part."""
    return -factor * log_rate.exp() * logits.float().exp().add(1.0).log()


def with_rounded_gradient(factor, query, key, value, compress, *memory):
    """Gradients written by hand are rounded in the readable form, too."""
    copy = compress * 1.0
    if copy.requires_grad and query.dtype is torch.bfloat16:
        copy.register_hook(lambda grad: factor * grad.bfloat16().float())
    return causal_abc.reference(query, key, value, copy, *memory)


@pytest.mark.parametrize(
    ("run", "operation", "attention", "wrong", "more"),
    [
        (times_softmax, softmax, "vanilla", 1.02, {"declines": lambda *_, **__: "chosen by torch"}),
        (without_log1p, kda_decay, "kda", 1.0001, {}),
        (with_rounded_gradient, causal_abc, "abc", 1.02, {}),
    ],
)
def test_a_kernel_as_exact_as_its_readable_form_passes_and_one_a_little_less_exact_fails(
    run, operation, attention, wrong, more, monkeypatch
):
    for factor in (1.0, wrong):
        results = found(functools.partial(run, factor), monkeypatch, operation, attention, **more)
        assert all(result.passed for result in results) is (factor == 1.0)


def test_no_piece_is_too_short_for_a_kernel(monkeypatch):
    """Below :data:`SHORTEST` tokens PyTorch computes, and no kernel would get a state."""
    sizes = list[int]()
    monkeypatch.setattr(kernels, "read_chunks", lambda _module, _inputs, pieces, _state: (sizes.extend(pieces), None))
    subject = subject_of("gla", "CS", options={})
    for length in kernels.LENGTHS:
        kernels._in_pieces(subject.build(embed_dim=16, num_heads=2), subject, length)
    assert sum(sizes) == sum(kernels.LENGTHS)
    assert min(sizes) >= SHORTEST
