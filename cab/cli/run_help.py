"""`cab run --help`: the values of each group, and every option with its default and description."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import textwrap
from collections import ChainMap
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from cab.files.text_table import text_table
from cab.registry.entries import Entry
from cab.registry.options import argument_texts
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS, Registry
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

  task       {tasks}
  dataset    {datasets}
  backbone   {backbones}
  attention  {attentions}
  pattern    NS, CS, NC, CC
  preset     paper, mini (default), smoke
  logger     csv (default), tensorboard, wandb
  cluster    none (default), local (worker processes, one per GPU), slurm (Slurm job arrays)

  --retry STATUSES              rerun runs with these comma-separated statuses: failed, oom, diverged, interrupted;
                                with results_dir= alone, all such runs in that folder
  --dry-run                     print the runs, their expected time and commands, without running them
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
MORE = "Options of a task, a backbone or an attention: cab run task=lstf backbone=informer attention=abc --help"
GROUPS: dict[str, Registry] = {"task": TASKS, "backbone": BACKBONES, "attention": ATTENTIONS}
FILES = {"": "run.yaml", "trainer.": "trainer/default.yaml"}
INDENT = " " * 13
CLUSTERS = ("local", "slurm")
MISSING, FROM_ENVIRONMENT = "???", "${oc.env:CAB_DATA,null}"


def help_text(arguments: Sequence[str]) -> str:
    """Return the help text, with the options of every task, backbone and attention that the arguments name."""
    *backbones, last = BACKBONES.names()
    names = {
        "tasks": TASKS.names(),
        "datasets": sorted({name for task in TASKS for name in task.datasets}),
        "backbones": [*backbones, f"{last} (optional if the task has only one)"],
        "attentions": ATTENTIONS.names(),
    }
    fill = partial(textwrap.fill, width=118, initial_indent=INDENT, subsequent_indent=INDENT)
    parts = [TEXT.format(**{group: fill(", ".join(of_group)).lstrip() for group, of_group in names.items()})]
    parts += [_table(file_options(CONFIGS / file, prefix)) for prefix, file in FILES.items()]
    for cluster in CLUSTERS:
        options = file_options(CONFIGS / "cluster" / f"{cluster}.yaml", "cluster.")
        parts.append(f"with cluster={cluster}:\n\n{_table(options)}")
    chosen = [argument.split("=", 1) for argument in arguments if argument.partition("=")[0] in GROUPS]
    for group, values in chosen:
        for name in values.split(","):
            parts.append(f"with {group}={name}:\n\n{_table(_class_options(GROUPS[group].get(name), group))}")
    return "\n".join(parts if chosen else [*parts, MORE])


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
        elif value != MISSING and key != "name":
            value = value.replace(FROM_ENVIRONMENT, "$CAB_DATA")
            yield f"{prefix}{outer if indent else ''}{key}={value}", text or ""


def _class_options(entry: Entry[type], group: str) -> Iterator[tuple[str, str]]:
    """Yield ``GROUP.OPTION=DEFAULT`` and description of each option of a class."""
    documented = [argument_texts(inspect.cleandoc(base.__doc__ or "")) for base in inspect.getmro(entry.cls)]
    texts = dict(ChainMap(*documented))  # a task has the options of its bases
    for name, default in entry.options.items():
        value = default if isinstance(default, str) else json.dumps(default, default=str)
        yield f"{group}.{name}={value}", texts.get(name, "")


def _table(options: Iterable[tuple[str, str]]) -> str:
    """Format one option and its description per row, as wide as the terminal."""
    width = shutil.get_terminal_size((120, 24)).columns
    return textwrap.indent(text_table((), list(options), width=width - 2), "  ") + "\n"
