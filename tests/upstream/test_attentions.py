"""Preset `paper` runs attentions in the form of CAB's released classes, whose numbers are in tests/public_numbers."""

from __future__ import annotations

import pytest

from cab.registry.registries import ATTENTIONS
from cab.registry.tables import tuned_options
from tests.helpers.golden_numbers import FOLDER, Golden

SIZES = ("num_landmarks", "window_size", "conv_kernel_size", "state_size", "factor")
CELLS = {
    "tts fastspeech2": "abc_ns lara cosformer_ns longshort_conv nystromformer local_ns s4d_ns_one_way probsparse",
    "tts transformer_tts": "abc_cc local_cs s4d_cs_both_ways",
    "lstf informer": "abc_nc cosformer_nc",
    **dict.fromkeys(("sum transformer", "sr sr3", "mlm roberta"), "nystromformer probsparse"),
}
"""Files of public_numbers by task and backbone."""


@pytest.mark.parametrize(("cell", "file"), [(cell, file) for cell, files in CELLS.items() for file in files.split()])
def test_options_are_those_of_the_released_form(cell: str, file: str) -> None:
    about = Golden.read(FOLDER / f"{file}.npz").about
    assert about["source"].startswith("Shark-NLP/CAB 0e49696")
    defaults = ATTENTIONS.get(about["attention"]).options
    options = defaults | about["options"], defaults | tuned_options(*cell.split(), about["pattern"], about["attention"])
    released, ours = ({k: v for k, v in form.items() if k not in SIZES} for form in options)
    assert ours == released
