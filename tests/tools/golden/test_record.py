"""The generator of golden numbers records again what is stored."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tests.helpers.golden_numbers import FOLDER, Golden
from tools.golden import record, transformers


@pytest.mark.slow
@pytest.mark.parametrize("make", [name for name in vars(transformers) if name.startswith("make_")])
def test_a_case_is_recorded_again(make: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its weights are copied whole, transposed and below other names."""
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["transformers", make.removeprefix("make_")])
    record.main(vars(transformers))
    assert torch.get_default_dtype() is torch.float32
    [file] = tmp_path.glob("*.npz")
    for case in {name.partition("/")[0] for name in record.np.load(file).files}:
        made, stored = (Golden.read(folder / file.name, case) for folder in (tmp_path, FOLDER))
        assert made.about == stored.about
        assert made.arrays.keys() == stored.arrays.keys()
        for name, array in made.arrays.items():
            assert torch.allclose(array, stored.arrays[name], rtol=1e-9, atol=1e-12), name
