"""The generators of golden numbers record again what is stored."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tests.helpers.golden_numbers import FOLDER, Golden
from tools.golden import __main__ as program, record


@pytest.mark.slow
def test_a_case_is_recorded_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its weights are copied whole, transposed and below other names."""
    case = "transformer_xl_ns"
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["tools.golden", "transformers", str(tmp_path), "xlnet"])
    program.main()
    assert torch.get_default_dtype() is torch.float32
    made, stored = (Golden.read(folder / "transformer_xl.npz", case) for folder in (tmp_path, FOLDER))
    assert made.about == stored.about
    assert made.arrays.keys() == stored.arrays.keys()
    for name, array in made.arrays.items():
        assert torch.allclose(array, stored.arrays[name], rtol=1e-9, atol=1e-12), name
