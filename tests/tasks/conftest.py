"""Few examples for the tests of tasks, which read data sets of others into a folder of their own."""

import pytest

from tests.helpers.tasks.records import few_examples


@pytest.fixture(autouse=True, scope="package")
def _few_examples(tmp_path_factory):
    with few_examples(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")
        yield
