"""These tests need the environment that `make fairseq` builds."""

from pathlib import Path

import pytest

from engines.fairseq import environment

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    is_there = (environment.HOME / "ready").exists()
    for item in items:
        if item.path.is_relative_to(HERE) and "without_environment" not in item.keywords:
            item.add_marker(pytest.mark.slow)
            if not is_there:
                item.add_marker(pytest.mark.skip(reason="fairseq's environment; make fairseq builds it"))
