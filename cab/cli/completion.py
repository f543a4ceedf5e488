"""`cab completion`: shell completion for bash and zsh."""

from __future__ import annotations

import argparse
import importlib

import yaml

from cab.patterns import Pattern
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS
from cab.registry.tables import CONFIGS

RUN_FLAGS = ("-m", "--dry-run", "--explain", "--no-cost", "--retry", "--cfg")
KEYS_OF = {"": "run", "trainer.": "trainer/default", "cluster.": "cluster/slurm"}
"""Prefix and file of the options of `cab run`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"), help='shell; add eval "$(cab completion bash)" to ~/.bashrc')


def run(args: argparse.Namespace) -> int:
    import shtab

    print(shtab.complete(_parser(), args.shell))
    if args.shell == "bash":
        print('COMP_WORDBREAKS="${COMP_WORDBREAKS//=}"  # an override is one word')
    return 0


def _parser() -> argparse.ArgumentParser:
    """Return a parser of all commands, whose positional arguments have the registered names as choices."""
    from cab.cli.main import COMMANDS
    from cab.data.sources import data_sets

    names = {"attention": ATTENTIONS.names(), "attentions": ATTENTIONS.names(), "names": list(data_sets())}
    program = argparse.ArgumentParser(prog="cab")
    commands = program.add_subparsers()
    for name, text in COMMANDS.items():
        parser = commands.add_parser(name, help=text)
        if name == "run":
            for flag in RUN_FLAGS:
                parser.add_argument(flag, action="store_true")
            parser.add_argument("overrides", nargs="*", choices=overrides())
        else:
            importlib.import_module(f"cab.cli.{name}").add_arguments(parser)
        actions = list(parser._actions)
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                actions += [inner for verb in action.choices.values() for inner in verb._actions]
        for action in actions:
            action.choices = names.get(action.dest, action.choices)
    return program


def overrides() -> list[str]:
    """Return the overrides of `cab run` with their values, and the keys of options that can have any value."""
    values = {
        "task": TASKS.names(),
        "dataset": sorted({name for task in TASKS for name in task.datasets}),
        "backbone": BACKBONES.names(),
        "attention": ATTENTIONS.names(),
        "pattern": list(map(str, Pattern)),
        "suite": ["core", "mini"],
        "device": ["auto", "cpu", "cuda"],
        "engine": ["torch", "fairseq"],
        **{key: ["true", "false"] for key in ("tune", "force", "profile", "data.download")},
    }
    for group in ("preset", "logger", "cluster"):
        values[group] = sorted(file.stem for file in (CONFIGS / group).glob("*.yaml"))
    for prefix, file in KEYS_OF.items():
        for key in yaml.safe_load((CONFIGS / f"{file}.yaml").read_text()):
            if key not in ("defaults", "name", "hydra"):
                values.setdefault(prefix + key, [""])
    return [f"{key}={value}" for key, choices in values.items() for value in choices]
