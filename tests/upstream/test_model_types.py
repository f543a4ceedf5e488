"""The wrong results of Transformers that the page of model types reports are wrong in the installed release."""

from __future__ import annotations

import re

import pytest

from cab.verification.foreign.hugging_face import without_kernels
from tests.helpers.documents import ROOT

PAGE = (ROOT / "docs" / "results" / "model-types.md").read_text()
PROGRAMS = dict(re.findall(r"^### (.*?)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
EXCEPTIONS = {
    "an error under autocast": "Index put requires the source and destination dtypes match",
    "the default configuration cannot be built": "'DbrxAttentionConfig' object has no attribute",
    "an error if the decoder has more layers than the encoder": "list index out of range",
    "an error for strided inputs": "view size is not compatible",
}
SMALLEST = 0.05


def test_every_fault_has_its_program() -> None:
    assert len(PROGRAMS) == PAGE.count("\n### ") == PAGE.count("```python\n") > len(EXCEPTIONS)
    assert {title.partition(": ")[2] for title in PROGRAMS} > EXCEPTIONS.keys()


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("title", PROGRAMS)
def test_program_shows_the_fault(title: str, capsys: pytest.CaptureFixture[str]) -> None:
    """If this fails in a newer release, the fault is repaired: delete its part of the page."""
    pytest.importorskip("transformers")
    with without_kernels():
        exec(PROGRAMS[title].partition("```python\n")[2], {})
    printed = capsys.readouterr().out.strip().splitlines()[-1]
    fault = title.partition(": ")[2]
    if fault in EXCEPTIONS:
        assert printed.startswith(EXCEPTIONS[fault])
    else:
        assert float(printed) > SMALLEST
