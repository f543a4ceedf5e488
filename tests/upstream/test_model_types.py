"""The wrong results of Transformers that the page of model types reports are wrong in the installed release."""

import runpy

import pytest

from cab.verification.foreign.hugging_face import without_kernels
from tests.helpers.documents import ROOT

PROGRAMS = sorted((ROOT / "tools" / "verification" / "finds").glob("*.py"))
EXCEPTIONS = {
    "autocast_adapters": "Index put requires the source and destination dtypes match",
    "default_configuration": "'DbrxAttentionConfig' object has no attribute",
    "layers_of_cache": "list index out of range",
    "sizes_of_states": "matC_old has wrong shape",
    "strided_states": "view size is not compatible",
}
SMALLEST = 0.05


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_program_shows_the_fault(program, capsys):
    """If this fails in a newer release, the fault is repaired: delete the program and generate the page again."""
    pytest.importorskip("transformers")
    with without_kernels():
        runpy.run_path(str(program))
    printed = capsys.readouterr().out.strip().splitlines()[-1]
    if program.stem in EXCEPTIONS:
        assert printed.startswith(EXCEPTIONS[program.stem])
    else:
        assert float(printed) > SMALLEST
