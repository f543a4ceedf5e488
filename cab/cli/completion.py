"""`cab completion`: shell completion for bash and zsh.

It must be fast: names are read from the source of the modules, and training options from their YAML file.
"""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from cab.files.config_folders import CONFIGS
from cab.patterns import Pattern
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS

SCRIPT = """\
_cab_complete() {
    local line="${COMP_LINE:0:COMP_POINT}"
    local current="${line##* }"
    mapfile -t COMPREPLY < <(cab completion --line "$line" 2>/dev/null)
    if [[ "$COMP_WORDBREAKS" == *"="* && "$current" == *"="* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${current%%=*}="}")
    fi
    [[ "${COMPREPLY[0]}" == *"=" || "${COMPREPLY[0]}" == *"." ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -o default -F _cab_complete cab
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"
WITH_ATTENTIONS = ("show", "verify", "efficiency")
VALUES = {
    "preset": ["paper", "mini", "smoke"],
    "logger": ["csv", "tensorboard", "wandb"],
    "cluster": ["none", "local", "slurm"],
    "device": ["auto", "cpu", "cuda"],
    "engine": ["torch", "fairseq"],
    "pattern": [str(pattern) for pattern in Pattern],
    "suite": ["core", "mini"],
    "tune": ["true"],
    "force": ["true", "false"],
    "profile": ["true", "false"],
    "data.download": ["true", "false"],
}
PLAIN = ["seed", "other_attention", "results_dir", "data_root"]
FLAGS = ["-m", "--dry-run", "--explain", "--retry", "--cfg", "--help"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell", nargs="?", choices=("bash", "zsh"), help='shell; add eval "$(cab completion bash)" to ~/.bashrc'
    )
    parser.add_argument("--line", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    if args.line is not None:
        words = args.line.split(" ")[1:]  # without the program name
        print("\n".join(candidates([*filter(None, words[:-1]), words[-1]] if words else [])))
    else:
        print((ZSH if args.shell == "zsh" else "") + SCRIPT, end="")
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """Return the completions of the last word, which may be empty."""
    from cab.cli.main import COMMANDS

    current = words[-1] if words else ""
    if len(words) < 2:
        return _beginning(current, COMMANDS)
    command = words[0]
    if command == "run":
        return _overrides(current, words[1:-1])
    if command not in COMMANDS:
        return []
    if current.startswith("-"):
        return _beginning(current, _flags(command, words[1:-1]))
    if command == "data":
        from cab.data.sources import data_sets

        return _beginning(current, ["list", "download", "verify"] if len(words) == 2 else data_sets())
    if command == "list" and len(words) == 2:
        return _beginning(current, ["attentions", "backbones", "tasks", "cells"])
    if command == "paper" and len(words) == 2:
        return _beginning(current, ["audit", "taxonomy", "table3"])
    return _beginning(current, ATTENTIONS.names()) if command in WITH_ATTENTIONS else []


def _beginning(start: str, known: Iterable[str]) -> list[str]:
    return sorted(word for word in known if word.startswith(start))


def _overrides(current: str, before: Sequence[str]) -> list[str]:
    """Return the matching flags, keys or values of a key; of comma-separated values the last is completed."""
    if current.startswith("-"):
        return _beginning(current, FLAGS)
    key, equals, typed = current.partition("=")
    if not equals:
        keys = [*_groups(), *VALUES, *PLAIN]
        keys += _keys_of("trainer/default", "trainer") if key.startswith("trainer.") else ["trainer."]
        cluster = next((word.partition("=")[2] for word in before if word.startswith("cluster=")), None)
        keys += _keys_of(f"cluster/{cluster}", "cluster") if cluster in VALUES["cluster"] else []
        return _beginning(current, [name if name.endswith(".") else f"{name}=" for name in keys])
    done, comma, last = typed.rpartition(",")
    values = {**_groups(), **VALUES}.get(key, [])
    return [f"{key}={done}{comma}{value}" for value in _beginning(last, values) if value not in done.split(",")]


def _groups() -> dict[str, list[str]]:
    datasets = sorted({name for task in TASKS for name in task.datasets})
    groups = {"task": TASKS.names(), "dataset": datasets, "backbone": BACKBONES.names()}
    return {**groups, "attention": ATTENTIONS.names()}


def _keys_of(file: str, group: str) -> list[str]:
    keys = re.findall(r"^(\w+):", Path(CONFIGS, f"{file}.yaml").read_text(), flags=re.MULTILINE)
    return [f"{group}.{key}" for key in keys if key != "name"]


def _flags(command: str, before: Sequence[str]) -> list[str]:
    """Return the long options of a command or subcommand."""
    parser = argparse.ArgumentParser(add_help=True)
    importlib.import_module(f"cab.cli.{command.replace('-', '_')}").add_arguments(parser)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            parser = next((action.choices[word] for word in before if word in action.choices), parser)
    return [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
