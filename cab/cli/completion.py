"""`cab completion`: shell completion for bash and zsh."""

from __future__ import annotations

import argparse
import importlib

import shtab

from cab.cli.list import LISTS
from cab.cli.main import COMMANDS
from cab.cli.run_help import file_options
from cab.data.sources import data_sets
from cab.patterns import Pattern
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS
from cab.registry.tables import CONFIGS
from cab.runner.suite import SUITES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"), help='shell; add eval "$(cab completion bash)" to ~/.bashrc')


def run(args: argparse.Namespace) -> int:
    print(shtab.complete(_parser(), args.shell))
    if args.shell == "bash":
        print('COMP_WORDBREAKS="${COMP_WORDBREAKS//=}"  # an override is one word')
    return 0


def _parser() -> argparse.ArgumentParser:
    """Return a parser of all commands, whose positional arguments have the registered names as choices."""
    attentions = ATTENTIONS.names()
    entries = [*LISTS, *attentions, *BACKBONES.names(), *TASKS.names()]
    by_argument = {"attentions": attentions, "attention": attentions, "entry": entries, "names": list(data_sets())}
    program = argparse.ArgumentParser(prog="cab")
    commands = program.add_subparsers()
    for name, text in COMMANDS.items():
        parser = commands.add_parser(name, help=text)
        importlib.import_module(f"cab.cli.{name}").add_arguments(parser)
        if name == "run":
            parser.add_argument("overrides", nargs="*", choices=overrides())
        actions = list(parser._actions)
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                actions += [inner for verb in action.choices.values() for inner in verb._actions]
        for action in actions:
            action.choices = by_argument.get(action.dest, action.choices)
    return program


def overrides() -> list[str]:
    """Return the overrides of `cab run`: groups with their names, and the keys of all other options."""
    values = {
        "task": TASKS.names(),
        "dataset": sorted({name for task in TASKS for name in task.datasets}),
        "backbone": BACKBONES.names(),
        "attention": ATTENTIONS.names(),
        "pattern": list(map(str, Pattern)),
        "suite": list(SUITES),
    }
    for group in ("preset", "logger", "cluster"):
        values[group] = sorted(file.stem for file in (CONFIGS / group).glob("*.yaml"))
    files = {"": "run.yaml", "trainer.": "trainer/default.yaml", "cluster.": "cluster/slurm.yaml"}
    options = [option for prefix, file in files.items() for option, _ in file_options(CONFIGS / file, prefix)]
    keys = dict.fromkeys(f"{option.partition('=')[0]}=" for option in options)
    return [*(f"{group}={name}" for group, names in values.items() for name in names), *keys, "tune="]
