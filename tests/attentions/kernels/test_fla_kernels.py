"""The backend fla: when it computes a layer, and that it computes what the references do."""

import inspect
import math
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.bases.recurrent import Recurrent
from attentions.forgetting import LONGEST, forgetting_attention
from attentions.kernels import chunks, fla_kernels
from attentions.kernels.numerics import upcast
from attentions.kernels.recurrence import recurrence
from cab import build_attention
from cab.flash_linear_attention import has_wrong_gradients
from cab.kernels import Backend, used
from cab.registry.registries import ATTENTIONS
from tests.attentions.kernels import interpreted_errors
from tests.helpers.attentions import on_fake_cuda
from tests.helpers.attentions.agreement import with_output
from tests.helpers.attentions.interpreter import needs_fla, needs_triton
from tests.helpers.attentions.trust import slow_unless_new

INTERPRETED = Path(__file__).with_name("fla_interpreted.py")


@needs_triton
@needs_fla
@pytest.mark.parametrize(
    "tier",
    [
        pytest.param("not slow", marks=slow_unless_new(*interpreted_errors.SUBJECTS)),
        pytest.param("slow and not nightly", marks=pytest.mark.slow),
        pytest.param("nightly", marks=(pytest.mark.slow, pytest.mark.nightly)),
    ],
)
def test_they_compute_what_ours_do(tier):
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:xdist", "-m", tier, str(INTERPRETED)]
    run = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_errors_of_every_operation_are_in_the_table_to_fill():
    """Each is called by an attention of interpreted_errors.py."""
    calls = {(row["attention"], part) for row in on_fake_cuda.stored() for part in row["backends"].split("; ")}
    by_fla = {(name, part) for name, part in calls if part.endswith(" fla")}
    assert {part for _, part in by_fla} == {part for name, part in by_fla if name in interpreted_errors.SUBJECTS}


def run_in_place_of_fla(run: Callable[..., Any], backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    for field, value in {"device": "cpu", "run": run, "is_installed": True, "is_deterministic": True}.items():
        monkeypatch.setattr(backend, field, value)


def in_bfloat16(reference: Callable[..., Any]) -> Callable[..., Any]:
    """Return the reference of terms that are in bfloat16, but for decays and the state."""

    def run(*terms: Tensor | None) -> tuple[Tensor, Tensor]:
        assert not torch.is_autocast_enabled("cpu")
        assert all(x is not None and x.dtype is torch.bfloat16 for x in terms[:3])
        output, state = reference(*(x if x is None else upcast(x) for x in terms))
        return output.to(torch.bfloat16), state

    return run


@pytest.mark.parametrize("name", [entry.name for entry in ATTENTIONS if issubclass(entry.cls, Recurrent)])
def test_a_layer_in_bfloat16_is_computed_by_them(name, monkeypatch):
    """By what is in their place, and in float32 and for short sequences by PyTorch."""
    module = with_output(build_attention(name, pattern="CS", embed_dim=64, num_heads=2))
    operation, x = module.operation, torch.randn(2, 70, 64)
    (backend,) = operation.backends
    assert backend.name == "fla"
    with torch.autocast("cpu", torch.bfloat16):
        expected = module(x)
    run_in_place_of_fla(in_bfloat16(operation.reference), backend, monkeypatch)
    for inputs, dtype, reason in ((x, torch.bfloat16, ""), (x, None, "float32"), (x[:, :63], torch.bfloat16, "fewer")):
        with torch.autocast("cpu", dtype, enabled=dtype is not None), used() as uses:
            output = module(inputs)
        assert uses.counts[operation.name] == {"pytorch" if reason else "fla": 1}
        assert not reason or uses.refusals[operation.name]["fla"].startswith(reason)
        assert inputs is not x or dtype is None or (output - expected).norm() <= 0.02 * expected.norm()


def test_mamba3_reads_ahead_over_chunks_and_padding(monkeypatch):
    """In bfloat16, with sequences that end in an earlier chunk or at its end, and a last chunk that is too short."""
    module, x = with_output(build_attention("mamba3", pattern="CS", embed_dim=64, num_heads=2)), torch.randn(4, 200, 64)
    padding = torch.arange(200) >= torch.tensor([[200], [193], [64], [37]])
    expected = module(x, query_padding_mask=padding)
    run_in_place_of_fla(in_bfloat16(recurrence.reference), recurrence.backends[0], monkeypatch)
    monkeypatch.setattr(chunks, "CPU_TOKENS", 1)
    with torch.autocast("cpu", torch.bfloat16), used() as uses:
        output = module(x, query_padding_mask=padding)
    assert uses.counts["recurrence"] == {"fla": 3, "pytorch": 1}
    for row, wanted in zip(output, expected, strict=True):
        assert (row - wanted).norm() <= 0.02 * wanted.norm()


CASES = [("3.6.0", 9, True), ("3.7.0+git1", 9, True), ("3.3.1", 9, False), ("3.7.1", 9, False), ("3.6.0", 8, False)]


@pytest.mark.parametrize(("triton", "capability", "is_wrong"), CASES)
def test_gpus_whose_gradients_are_wrong(triton, capability, is_wrong, monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda _: triton)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (capability, 0))
    assert has_wrong_gradients.__wrapped__(torch.device("cuda")) is is_wrong


@needs_fla
def test_wrong_gradients_are_not_computed(monkeypatch):
    """Those of decays per head; fla computes the other layers, and all forward passes."""
    monkeypatch.setattr(fla_kernels, "has_wrong_gradients", lambda _: True)
    for name, by_fla in {"ssd": False, "deltaproduct": False, "deltanet": True, "kda": True}.items():
        _, uses = on_fake_cuda.forward(name, "CS", "autocast", trains=True)
        assert ("fla" in uses.names) is by_fla
    assert "fla" in on_fake_cuda.forward("ssd", "CS", "autocast")[1].names


@pytest.mark.parametrize("name", ["kda", "gated_deltanet_2"])
def test_log_decays_given_to_the_kernel(name, monkeypatch):
    """In float32, although their logits are in bfloat16, and so large that blocks can sum them."""
    module = build_attention(name, pattern="CS", embed_dim=64, num_heads=2)
    decays: list[Tensor] = []

    def stand_in(_path: str, **tensors: Any) -> tuple[Tensor, Tensor]:
        decays.append(tensors["g"])
        return tensors["v"], tensors["initial_state"]

    monkeypatch.setattr(fla_kernels, "call", stand_in)
    backend = module.operation.backends[0]
    run_in_place_of_fla(backend.run, backend, monkeypatch)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        module.decay_map[1].bias[0] = 1e4
        x = torch.randn(2, 70, 64)
        logits = module.decay_map(x)
        module(x)
    expected = -module.log_rate.exp().view(2, 1) * F.softplus(logits.float()).unflatten(-1, (2, -1))
    assert decays[0].dtype is torch.float32
    torch.testing.assert_close(decays[0], expected.clamp(min=-100.0))


BOUNDED = ("recurrence", "delta_rule", "kda", "gated_delta_rule_2", "comba", "delta_product")


@pytest.mark.parametrize("name", BOUNDED)
def test_no_operation_forgets_so_much_that_blocks_cannot_sum_it(name, monkeypatch):
    given: dict[str, Any] = {}
    monkeypatch.setattr(fla_kernels, "call", lambda _, **tensors: given.update(tensors) or (tensors["v"], None))
    function = getattr(fla_kernels, name)
    *terms, state = (torch.randn(2, 3, 70, 16) for _ in inspect.signature(function).parameters)
    terms[-1] = torch.full_like(terms[-1], -3000.0)
    function(*terms, state)
    assert bool((given["g"] == -100.0).all())


def test_long_sums_of_gates_are_not_left_to_the_kernel():
    """Of chunks of 64 tokens, added in float32 and in units of log 2, as in flash-linear-attention."""
    declines, errors = forgetting_attention.backends[0].declines, []
    for length in (LONGEST, 4 * LONGEST):
        kept = F.logsigmoid(torch.randn(length // 64, 64, dtype=torch.float64)) / math.log(2.0)
        within, before = kept.float().cumsum(dim=1), [torch.zeros(1)]
        for total in within[:-1, -1:]:
            before.append(before[-1] + total)
        error = (torch.stack(before) + within).flatten() - kept.flatten().cumsum(dim=0)
        errors.append(max(float((error[apart:] - error[:-apart]).abs().max()) for apart in (1, 20, 64)))
    rounding = 0.5 * 2.0**-7 * 4.0  # of a logit of 4 in bfloat16
    assert errors[0] < rounding < errors[1]
    heads = torch.empty(1, 1, LONGEST + 1, 1)
    assert declines(heads)
    assert not declines(heads[:, :, 1:])
