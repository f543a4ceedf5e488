"""Memory that is asked for uncleared holds NaN in every test of attentions: none may reach an output or a gradient."""

import pytest
import torch


@pytest.fixture(autouse=True)
def poisoned():
    """torch.empty gives NaN, and so does every kernel's own uncleared memory."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(__file__.rpartition("/")[0]):
            item.add_marker(pytest.mark.filterwarnings("ignore:.*deterministic.*:UserWarning"))
