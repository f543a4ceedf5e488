"""Options of Hydra that `cab run` does not have, and what replaces them; `python -m cab.hydra_app` has them all."""

from __future__ import annotations

from collections.abc import Mapping

from cab.errors import UserError

REPLACED_OPTIONS: Mapping[tuple[str, ...], str] = {
    ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir"): "set `results_dir=FOLDER`",
    ("hydra/launcher",): "set `cluster=local` (workers on this machine) or `cluster=slurm`",
    (
        "hydra/sweeper",
        "interval()",
    ): "list values with `-m`: `seed=1,2`, `range(1,4)`, or `glob(*former)` of names",
    ("hydra.job.chdir",): "a run never changes the working folder",
    ("--config-name", "-cn"): "use `--config FILE` or `experiment=NAME`",
    ("--config-path", "-cp"): "use `--config-dir DIR`",
    (
        "--cfg all",
        "--cfg hydra",
        "--info",
        "--package",
        "--resolve",
    ): "see `--cfg job` (resolved) or `--explain`",
    ("--hydra-help",): "use `--help`",
    ("--shell-completion",): "use `cab completion bash`",
    ("--experimental-rerun",): "use `cab reproduce RESULT`",
    ("~KEY",): "leave the key out, so that it has its usual value",
}
"""What to do instead, by names of options."""


def replacement(name: str) -> str | None:
    """Return what replaces an option of Hydra, or the group that it belongs to; None for other names."""
    path = f"{name}.".replace("/", ".")
    for names, text in REPLACED_OPTIONS.items():
        if any(path.startswith(f"{known}.".replace("/", ".")) for known in names):
            return text
    return "the configuration reference lists what cab run has" if path.startswith("hydra.") else None


def refusal(name: str) -> UserError:
    """Return the error for an option of Hydra."""
    return UserError(f"cab run does not have Hydra's '{name}': {replacement(name)}, or use `python -m cab.hydra_app`")
