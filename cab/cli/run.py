"""`cab run`: one cell, or a sweep of cells with -m, composed by Hydra."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import traceback
from typing import TYPE_CHECKING, Any

from cab.errors import Unsupported, UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from cab.runner.run import Outcome

log = logging.getLogger("cab")

_outcomes: list[Outcome] = []
_left_out: list[str] = []
_failures: list[str] = []
_raised: list[Exception] = []  # of a single cell; kept from Hydra, which would print its own lines about it

HELP = """\
usage: cab run task=TASK dataset=DATASET attention=ATTENTION pattern=PATTERN [KEY=VALUE ...]
       cab run -m task=TASK dataset=DATASET attention=A,B,C pattern=NS,NC [KEY=VALUE ...]

Trains and evaluates one cell and writes its record; with -m every runnable combination of the values
separated by commas. A cell whose record exists is not run again; a cell that was cut goes on.

  task       {tasks}
  dataset    {datasets}
  backbone   {backbones} (may be left out where the task has one)
  attention  {attentions}
  pattern    NS, CS, NC, CC
  preset     paper, mini (default), smoke

  seed=1  elsewhere=vanilla  results_dir=results/local  data_root=FOLDER (or CAB_DATA)
  device=auto|cpu|cuda  force=true  logger=csv|wandb  engine=lightning|fairseq
  --retry failed,oom,diverged   run cells again whose record has one of these statuses

Options of an attention, backbone or task are set by name, as attention.num_landmarks=32; those of training
as trainer.max_steps=100. --cfg job prints the whole configuration and runs nothing.
"""


def run(arguments: list[str]) -> int:
    """Run what the overrides say; 0 when every cell that can run has its record."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s", force=True)
    if "-h" in arguments or "--help" in arguments:
        print(_help())
        return 0
    from cab import config

    arguments = _retry_as_override(arguments)
    flags = [a for a in arguments if a.startswith("-")]
    overrides = config.check_overrides(a for a in arguments if not a.startswith("-"))
    config.register_configs()
    _compose_and_run([*flags, *overrides])
    _report(sweep=any(flag in ("-m", "--multirun") for flag in flags), printed="--cfg" in " ".join(flags))
    return 1 if _failures else 0


def _retry_as_override(arguments: list[str]) -> list[str]:
    """``--retry failed,oom`` as the override it stands for."""
    from cab.runner.faults import STATUSES

    if "--retry" not in arguments:
        return arguments
    place = arguments.index("--retry")
    wanted = "".join(arguments[place + 1 : place + 2]).split(",")
    known = [status for status in STATUSES if status != "finished"]
    if not set(wanted) <= set(known):
        raise UserError(f"--retry takes statuses separated by commas, of {', '.join(known)}")
    return [*arguments[:place], *arguments[place + 2 :], f"retry=[{','.join(wanted)}]"]


def _compose_and_run(arguments: list[str]) -> None:
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from cab.config import CONFIGS

    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come back to us, not to the terminal
    before = sys.argv
    sys.argv = ["cab run", *arguments]
    for collected in (_outcomes, _left_out, _failures, _raised):
        collected.clear()
    try:
        hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="run")(run_composed)()
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(_one_line(error)) from error
    finally:
        sys.argv = before
    if _raised:
        raise _raised[0]


def run_composed(composed: DictConfig) -> None:
    """One job of Hydra's: also called in other processes by launchers."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from cab.config import resolve
    from cab.runner.run import run_cell

    in_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
    try:
        outcome = run_cell(resolve(composed), command=_command())
    except Exception as error:
        if not in_sweep:
            _raised.append(error)
        elif isinstance(error, Unsupported):
            _left_out.append(str(error))
        else:
            log.error("%s", error if isinstance(error, UserError) else traceback.format_exc())
            _failures.append(f"{' '.join(HydraConfig.get().overrides.task)}: {_one_line(error)}")
        return
    log.info("%s: %s", _words(outcome), outcome.title)
    if outcome.record is not None and outcome.record["status"] == "failed":
        _failures.append(f"{outcome.title}: {outcome.record['error']}")
    _outcomes.append(outcome)


def _words(outcome: Outcome) -> str:
    """What became of the cell, in words."""
    status = "finished" if outcome.record is None else outcome.record["status"]
    if outcome.status == "found":
        again = "" if status == "finished" else f" ({status}; --retry {status} runs it again)"
        return "already there" + again
    if outcome.record is None:
        return outcome.status
    return status if status == "finished" else f"{status} ({outcome.record['error']})"


def _report(*, sweep: bool, printed: bool) -> None:
    for reason in dict.fromkeys(_left_out):
        log.warning("left out: %s", reason)
    for failure in _failures:
        log.error("failed: %s", failure)
    records = [outcome.record for outcome in _outcomes if outcome.record is not None]
    if records:
        print(_sweep_table(records) if sweep else _cell_table(records[0]))
    elif not printed and not _failures and not _outcomes:
        raise UserError(f"no cell can run: {'; '.join(dict.fromkeys(_left_out)) or 'nothing was composed'}")


def _cell_table(record: Any) -> str:
    """The metrics of one record, its baselines beside them."""
    names = list(record["baselines"])
    lines = [["metric", record["cell"]["attention"], *names, "unit"]]
    for metric in record["metrics"]:
        values = [metric["value"], *(record["baselines"][name].get(metric["name"]) for name in names)]
        lines.append([metric["name"], *map(_number, values), metric["unit"]])
    return "\n".join(_aligned(lines))


def _sweep_table(records: list[Any]) -> str:
    """A row a cell: what names it, its primary metrics, the baselines of its data, size and time."""
    names = [m["name"] for m in records[0]["metrics"] if m["primary"]]
    baselines = list(records[0]["baselines"])
    header = ["task", "dataset", "backbone", "pattern", "attention", "seed", *names]
    header += [f"{baseline} {names[0]}" for baseline in baselines] + ["params", "seconds"]
    lines = [header]
    for record in records:
        cell, metrics = record["cell"], {m["name"]: m["value"] for m in record["metrics"]}
        lines.append(
            [
                *(str(cell[key]) for key in header[:6]),
                *(_number(metrics.get(name)) for name in names),
                *(_number(record["baselines"].get(b, {}).get(names[0])) for b in baselines),
                "-" if record["cost"]["params"] is None else f"{record['cost']['params']:,}",
                f"{record['cost']['wall_seconds']:.0f}",
            ]
        )
    return "\n".join(_aligned(lines))


def _aligned(lines: list[list[str]]) -> list[str]:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _help() -> str:
    from cab.registry import ATTENTIONS, BACKBONES, TASKS

    datasets = sorted({name for task in TASKS for name in task.cls.datasets})  # type: ignore[attr-defined]
    return HELP.format(
        tasks=", ".join(TASKS.names()),
        datasets=", ".join(datasets),
        backbones=", ".join(BACKBONES.names()),
        attentions=", ".join(ATTENTIONS.names()),
    )


def _command() -> str:
    from hydra.core.hydra_config import HydraConfig

    return "cab run " + shlex.join(HydraConfig.get().overrides.task)


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
