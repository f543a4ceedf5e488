"""Processes that a test starts do not take over the options of the process that runs the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _chosen_by_the_environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_ADDOPTS", "tests/attentions")
        yield


def test_a_pytest_of_a_test_does_not_choose_the_tests_of_its_parent() -> None:
    """It would start itself again without end."""
    assert "PYTEST_ADDOPTS" not in os.environ
