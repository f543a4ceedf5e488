"""The backend fla: when it computes a layer, and that it computes what the references do."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from attentions.bases.recurrent import Recurrent
from attentions.kernels.recurrence import recurrence
from cab import build_attention
from cab.kernels import used
from cab.registry.registries import ATTENTIONS
from tests.helpers.attentions.agreement import with_output
from tests.helpers.attentions.interpreter import needs_triton

INTERPRETED = Path(__file__).parents[2] / "helpers" / "attentions" / "fla_interpreted.py"


@needs_triton
@pytest.mark.skipif(find_spec("fla") is None, reason="flash-linear-attention, which make setup installs on Linux")
@pytest.mark.slow
def test_they_compute_what_ours_do() -> None:
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:xdist", str(INTERPRETED)]
    run = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("name", [entry.name for entry in ATTENTIONS if issubclass(entry.cls, Recurrent)])
def test_a_layer_in_bfloat16_is_computed_by_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is in their place, and in float32 and for short sequences by PyTorch."""
    module = with_output(build_attention(name, pattern="CS", embed_dim=64, num_heads=2))
    assert isinstance(module, Recurrent)
    operation, x = module.operation, torch.randn(2, 70, 64)
    (backend,) = operation.backends
    assert backend.name == "fla"
    with torch.autocast("cpu", torch.bfloat16):
        expected = module(x)
    here = {"device": "cpu", "run": operation.reference, "is_installed": True, "is_deterministic": True}
    for field, value in here.items():
        monkeypatch.setattr(backend, field, value)
    for inputs, dtype, reason in ((x, torch.bfloat16, ""), (x, None, "float32"), (x[:, :63], torch.bfloat16, "fewer")):
        with torch.autocast("cpu", dtype, enabled=dtype is not None), used() as uses:
            output = module(inputs)
        assert uses.counts[operation.name] == {"pytorch" if reason else "fla": 1}
        assert not reason or uses.refusals[operation.name]["fla"].startswith(reason)
        assert inputs is not x or dtype is None or torch.equal(output, expected)


@pytest.mark.parametrize(("keys", "values", "refused"), [(16, 256, False), (15, 64, True), (64, 257, True)])
def test_widths_without_a_kernel(keys: int, values: int, refused: bool) -> None:
    state = torch.zeros(1, 1, keys, values)
    assert (recurrence.backends[0].refuses(state) is not None) is refused
