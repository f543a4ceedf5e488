"""`cab run --help`: the values of each group, and every option with its default and description."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from cab.errors import unknown_name
from cab.files.text_table import text_table
from cab.registry.entries import RegistryEntry
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS, Registry
from cab.registry.stacks import parts_of
from cab.registry.tables import CONFIGS

TEXT = """\
usage: cab run task=TASK dataset=DATASET attention=ATTENTION pattern=PATTERN [KEY=VALUE ...]
       cab run suite=paper [pattern=PATTERN] [task=TASK] [attention=ATTENTION] [--dry-run] [KEY=VALUE ...]
       cab run suite=core attention=ATTENTION [pattern=PATTERN] [task=TASK] [seed=1,2,3] [KEY=VALUE ...]
       cab run -m [task=T,U] [attention=A,B] [pattern=NS,NC] [cluster=local|slurm] [--dry-run] [KEY=VALUE ...]

Train and evaluate one configuration and write its result. With -m, run every valid combination of the
comma-separated values; a group that is not named means ALL of its values (of the data sets, all real ones), so try
--dry-run first. Finished runs are not repeated, interrupted runs resume.

suite=paper runs the cells of Table 3 with preset=paper: 251 runs, of which pattern=, task= and attention= select some.
With preset=smoke dataset=synthetic, it is a rehearsal in minutes. `cab paper table3` then prints the table.

suite=core runs the core cells of the synthetic suite with seeds 1 to 3, and suite=mini all its cells. Both compare the
attention with the bundled reference results. With tune=true, the learning rate of each cell is chosen on another seed.
An attention without a bundled cost is then measured: time, memory and decode state at 8,192 tokens.

{groups}

  --retry STATUSES              rerun runs with these comma-separated statuses: failed, oom, diverged, interrupted;
                                with results_dir= alone, all such runs in that folder
  --dry-run                     print the runs, their expected time and commands, without running them
  --calibrate                   as --dry-run, with the times of 20 training steps of each network on this device
  --explain                     print every setting, its default and its source (command line, file or module),
                                without running anything
  --no-cost                     with suite=, do not measure the cost
  -v                            log the loss at every row of metrics.csv; without, a terminal shows a progress bar, and
                                a file ten lines per run
  --cfg job                     print the composed configuration as YAML, without running anything
  --config FILE                 settings of a YAML file, such as the output of --cfg job; those of the command line win
  --config-dir DIR              folder with your own presets, recipes and experiments, laid out as configs/; then
                                experiment=NAME adds the settings of DIR/experiment/NAME.yaml

Use attention=FILE.py:Class for your own subclass of cab.Attention. An attention that has not passed `cab verify` in
the pattern is trained as well, and its scores are marked with a dagger.
"""
GROUP_TEXT = """\
{tasks}

  backbone   {backbones}
  attention  {attentions}
  pattern    NS, CS, NC, CC
  preset     paper, mini (default), smoke
  logger     csv (default), tensorboard, wandb
  cluster    none (default), local (worker processes, one per GPU), slurm (Slurm job arrays)"""
MORE = (
    "Options of what is named: cab run trainer=default cluster=slurm task=lstf backbone=informer attention=abc --help"
)
CLASS_GROUPS: dict[str, Registry] = {"task": TASKS, "backbone": BACKBONES, "attention": ATTENTIONS}
WITH_FILES = ("trainer", "cluster", "logger")
INDENT = " " * 13


def help_text(arguments: Sequence[str]) -> str:
    """Return the help text, or the options of every task, backbone, attention and group of files that is named."""
    from cab.config.compose import names_in  # imports hydra

    parts = []
    for argument in arguments:
        group, _, values = argument.partition("=")
        for name in names_in(argument) if values and group in (*CLASS_GROUPS, *WITH_FILES) else ():
            files = {path.stem: path for path in sorted((CONFIGS / group).glob("*.yaml"))}
            if group in WITH_FILES and name not in files:
                raise unknown_name(group, name, files)
            if group in WITH_FILES:
                options = file_options(files[name], f"{group}.")
            else:
                options = _class_options(CLASS_GROUPS[group].get(name), group)
            parts.append(f"with {group}={name}:\n\n{_table(options)}")
    if parts:
        return "\n".join(parts)
    return "\n".join([TEXT.format(groups=group_text()), _table(file_options(CONFIGS / "run.yaml", "")), MORE])


def group_text() -> str:
    """Return the values of each group of a run: a table of tasks with their backbones and data sets, and the others."""
    *backbones, last = BACKBONES.names()
    rows = [("task", "backbones", "data sets")]
    rows += [(task.name, ", ".join(task.names), ", ".join(task.datasets)) for task in TASKS]
    fill = partial(textwrap.fill, width=118, initial_indent=INDENT, subsequent_indent=INDENT)
    return GROUP_TEXT.format(
        backbones=fill(", ".join([*backbones, f"{last} (optional if the task has only one)"])).lstrip(),
        attentions=fill(", ".join(ATTENTIONS.names())).lstrip(),
        tasks=textwrap.indent(text_table(rows[0], rows[1:], align="l", width=116), "  "),
    )


def file_options(path: Path, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield ``KEY=DEFAULT`` and comment of each key of a YAML file, without Hydra's own keys."""
    outer = ""
    for line in path.read_text().partition("\nhydra:")[0].splitlines():
        match = re.match(r"(  )?(\w+):(?: ([^#]+?))?(?: # (.*))?$", line)
        if match is None:
            continue
        indent, key, value, text = match.groups()
        if value is None:
            outer = f"{key}."
        elif value != "???" and key != "name":  # ???: a value that the user must give
            value = value.replace("${oc.env:CAB_DATA,null}", "$CAB_DATA")
            yield f"{prefix}{outer if indent else ''}{key}={value}", text or ""


def _class_options(entry: RegistryEntry[type], group: str) -> Iterator[tuple[str, str]]:
    """Yield ``GROUP.OPTION=DEFAULT`` and description of each option of a class."""
    for prefix, part in parts_of(entry).items():
        texts = part.texts
        for name, default in part.options.items():
            value = default if isinstance(default, str) else json.dumps(default, default=str)
            yield f"{group}.{prefix}{name}={value}", texts.get(name, "")


def _table(options: Iterable[tuple[str, str]]) -> str:
    """Format one option and its description per row, as wide as the terminal."""
    width = shutil.get_terminal_size((120, 24)).columns
    return textwrap.indent(text_table((), list(options), width=width - 2), "  ") + "\n"
