"""A run composed by Hydra alone, with its command line, launchers and sweepers: ``python -m cab.hydra_app ...``.

Every group is named, as in ``task=lstf dataset=etth1 backbone=informer pattern=NS attention=abc``. The value for a
sweeper is the task's first metric. With ``HYDRA_FULL_ERROR=1``, an error has its traceback.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from cab.cli.main import exit_status
from cab.cli.run_help import group_text
from cab.config.compose import check_preset, hydra_errors
from cab.errors import UserError
from cab.registry.tables import ADDED, config_folders


@hydra.main(config_path=None, config_name="run", version_base="1.3")
def main(config: DictConfig) -> float | None:
    """Run one cell, and return its first metric."""
    from cab.runner.run import run_cell

    for source in HydraConfig.get().runtime.config_sources:
        if source.provider == "command-line":  # --config-dir, whose presets and tables apply
            os.environ[ADDED] = source.path
            config_folders.cache_clear()
    overrides = HydraConfig.get().overrides.task
    if any(override.startswith("attention=[") for override in overrides):
        raise UserError("Hydra merges the groups of a list; write a stack in quotes: \"attention='gla*3,vanilla'\"")
    if config.cluster.name != "none":
        raise UserError("cluster= is for `cab run`; here, hydra/launcher= starts the runs elsewhere")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    check_preset(config.preset, task=config.task.name, backbone=config.backbone.name)
    with hydra_errors():
        resolved: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    outcome = run_cell(resolved, command=shlex.join(["python", "-m", "cab.hydra_app", *overrides]))
    logging.info("%s: %s", outcome.kind, outcome.title)
    if outcome.record is not None and outcome.record.error:
        raise UserError(outcome.record.error)
    return outcome.record.metrics[0].value if outcome.record is not None else None


def program() -> int:
    """Run ``main`` with Hydra's command line; a user's mistake is an error on one line, as in ``cab run``."""
    if not {"-h", "--help"}.isdisjoint(sys.argv[1:]):  # Hydra's own needs a value of every group
        sys.stdout.write(f"{__doc__}\n{group_text()}\n\nHydra's flags: python -m cab.hydra_app --hydra-help\n")
        return 0
    with hydra_errors():
        main()
    return 0


if __name__ == "__main__":
    debug = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # so that Hydra raises errors, instead of printing them
    sys.exit(exit_status(program, debug=debug, to_debug="set HYDRA_FULL_ERROR=1", trains=True))
