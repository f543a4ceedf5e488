"""When the kernels of flash-linear-attention are taken, and that they then compute what our forms do."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from attentions.bases.recurrent import Recurrent
from attentions.kernels import fla_kernels
from cab import build_attention
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
def test_a_layer_in_bfloat16_computes_by_the_form_that_is_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours stands in the place of theirs, and in the place of ours what must not be called."""
    module = with_output(build_attention(name, pattern="CS", embed_dim=32, num_heads=2))
    x = torch.randn(2, 70, 32)
    assert isinstance(module, Recurrent)
    ours, theirs = module.forms
    assert theirs is getattr(fla_kernels, getattr(ours, "func", ours).__name__)
    with torch.autocast("cpu", torch.bfloat16):
        expected = module(x)
        monkeypatch.setattr(fla_kernels, "can_use_kernels", lambda _value, _state, inputs: inputs is torch.bfloat16)
        monkeypatch.setattr(type(module), "forms", (None, ours))
        assert torch.equal(module(x), expected)


class OnCuda:
    """What is asked of a tensor there."""

    def __init__(self, *shape: int, cuda: bool = True) -> None:
        self.shape = shape
        self.is_cuda = cuda


def taken(value: OnCuda, state: OnCuda, inputs: torch.dtype = torch.bfloat16) -> bool:
    return fla_kernels.can_use_kernels(value, state, inputs)  # type: ignore[arg-type]


def test_when_they_can_use_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fla_kernels, "HAS_FLA", True)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: False)
    value, state = OnCuda(2, 4, 64, 64), OnCuda(2, 4, 64, 64)
    assert taken(value, state)
    assert not taken(value, state, torch.float32)
    assert not taken(value, state, torch.float16)
    assert not taken(OnCuda(2, 4, 64, 64, cuda=False), state)
    assert not taken(OnCuda(2, 4, 63, 64), state)
    assert not taken(value, OnCuda(2, 4, 15, 64))
    assert not taken(value, OnCuda(2, 4, 64, 257))
    for module, name, answer in (
        (torch, "are_deterministic_algorithms_enabled", lambda: True),
        (torch.compiler, "is_compiling", lambda: True),
        (fla_kernels, "HAS_FLA", False),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, answer)
            assert not taken(value, state)
