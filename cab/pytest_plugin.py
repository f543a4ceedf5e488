"""The conformance suite in pytest without a test file: ``pytest --cab hf:mamba2`` or ``pytest --cab FILE.py:Class``.

Nothing of this project but this module, and what ``import cab`` loads, is imported unless an option is given.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plug-in."""
    group = parser.getgroup("cab", "conformance of attentions and language models")
    group.addoption(
        "--cab",
        action="append",
        default=[],
        metavar="NAME",
        help="verify hf:TYPE, FILE.py:Class, FILE.py:function, package.module:name or a registered attention",
    )
    group.addoption("--cab-hf-all", action="store_true", help="verify every causal model type of transformers")
    group.addoption(
        "--cab-patterns", metavar="PATTERNS", help="patterns, such as 'NS,CS' (default: those of the class)"
    )
    group.addoption("--cab-full", action="store_true", help="also run slow checks and long sequences")


def pytest_collection(session: pytest.Session) -> None:
    """Collect the names, and the files of the command line if there are any."""
    config = session.config
    if _names(config):
        is_given = config.args_source is pytest.Config.ArgsSource.ARGS
        config.args[:] = [*(config.args if is_given else []), __file__]


def pytest_collect_file(parent: pytest.Collector, file_path: Path) -> pytest.Collector | None:
    """Collect the items of the options as those of this file."""
    is_here = file_path == Path(__file__) and _names(parent.config)
    return Names.from_parent(parent, path=file_path) if is_here else None


def _names(config: pytest.Config) -> list[str]:
    return [*config.getoption("--cab"), *["hf"] * config.getoption("--cab-hf-all")]


class Names(pytest.Module):
    """The names of the options, as one test function each."""

    def funcnamefilter(self, name: str) -> bool:  # noqa: ARG002
        """Accept every function, as there are no others."""
        return True

    def _getobj(self) -> Any:
        import types

        from cab.errors import UserError
        from cab.testing import checks, patterns_of

        config, module = self.config, types.ModuleType("cab")
        try:
            for name in config.getoption("--cab") + (model_types() if config.getoption("--cab-hf-all") else []):
                patterns = (config.getoption("--cab-patterns") or patterns_of(name)).replace(",", " ")
                test = checks(name, patterns=patterns, quick=not config.getoption("--cab-full"))
                setattr(module, name, test)
        except UserError as error:
            raise self.CollectError(str(error)) from error
        return module


def model_types() -> list[str]:
    """Return the names of all causal model types of the installed transformers."""
    from transformers.models.auto import modeling_auto

    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return [f"hf:{name}" for name in causal if name in modeling_auto.MODEL_MAPPING_NAMES]
