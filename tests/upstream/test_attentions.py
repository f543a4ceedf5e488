"""Preset `paper` runs attentions in the form of CAB's released classes, whose numbers are in tests/public_numbers."""

import pytest

from cab.registry.registries import ATTENTIONS
from cab.registry.tables import tuned_options
from tests.helpers.golden_numbers import Golden, cases

SIZES = ("num_landmarks", "window_size", "conv_kernel_size", "state_size", "factor")
CELLS = {
    "tts fastspeech2": "abc_ns lara cosformer_ns longshort_conv nystromformer local_ns s4d_ns_one_way probsparse",
    "tts transformer_tts": "abc_cc local_cs s4d_cs_both_ways",
    "lstf informer": "abc_nc cosformer_nc",
    **dict.fromkeys(("sum transformer", "sr sr3", "mlm roberta"), "nystromformer probsparse"),
}
"""Cases of public_numbers by task and backbone."""
FILES = cases()


@pytest.mark.parametrize(("cell", "case"), [(cell, case) for cell, names in CELLS.items() for case in names.split()])
def test_options_are_those_of_the_released_form(cell, case):
    about = Golden.read(FILES[case], case).about
    assert about["source"].startswith("Shark-NLP/CAB 0e49696")
    defaults = ATTENTIONS.get(about["attention"]).options
    options = defaults | about["options"], defaults | tuned_options(*cell.split(), about["pattern"], about["attention"])
    released, ours = ({k: v for k, v in form.items() if k not in SIZES} for form in options)
    assert ours == released
