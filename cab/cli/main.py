"""`cab`: one program, one module per command; nothing heavy is imported before a command needs it.

The module of a command has ``add_arguments`` and ``run``; after its first line, its docstring is the end of its help.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from cab.cli.terminal import log_to_terminal, print_note, unknown_flag
from cab.errors import EXAMPLE_COMMAND, ExitError, Preempted, UserError, first_line, unknown_name
from cab.files.disk import is_full_disk

COMMAND_GROUPS = {
    "run": {
        "run": "train and evaluate one configuration, a sweep with -m, Table 3 or the synthetic suite",
        "status": "show the status of every run in a results folder",
        "reproduce": "rerun the configuration of a result and compare the scores",
        "evaluate": "score the kept weights of a run again, on fewer examples or with other options of the task",
        "data": "list, download and verify the published data sets",
        "demo": "rehearse Table 3 in small, in one to two minutes, and check the installation",
    },
    "score": {
        "leaderboard": "write a page of tables and figures from results, and CSV files",
        "score": "print metrics and the compositional index of results, and verdicts on attentions in the suite",
        "crossover": "compute the efficiency length, from which an attention is cheaper than softmax attention",
        "correlation": "correlate patterns, tasks and benchmarks",
        "paper": "print Table 3 and every other published table with your results, and audit them",
    },
    "check": {
        "verify": "check an attention: causality, decoding, padding, numerics, growth of time and memory",
        "efficiency": "measure time and memory against sequence length",
        "export": "write a trained language model for Hugging Face, or golden vectors of an attention",
        "list": "list attentions, backbones, tasks and cells, or print the card of one",
        "completion": "print a completion script for bash or zsh",
    },
}
WITH_OPTIONS = ("evaluate", "export", "verify")
"""Commands with arguments OPTION=VALUE, which may follow a flag; `cab run` reads its own."""
COMMANDS = {name: text for group in COMMAND_GROUPS.values() for name, text in group.items()}

EMPTY_ARGUMENT = re.compile(r"[\s,]*|--[\w-]+=[\s,]*|[\w.]+=\s*,[\s,]*")
"""An argument without a value, or with a list of commas alone."""
EXAMPLE_COMMANDS = {
    "One cell": EXAMPLE_COMMAND,
    "Leaderboard": "cab leaderboard results/local",
    "Table 3": "cab run suite=paper --dry-run",
    "Is it correct?": "cab verify hf:mamba2 --quick",
    "What does it cost?": "cab efficiency abc --pattern NS",
    "How good is it?": "cab run suite=core attention=abc cluster=local",
}
"""Command for each frequent goal; all are in the README."""


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit status: 0, 2 for a user error, 3 for an internal error.

    A command may return 1 for a negative result, such as a failed check.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in argv
    if debug:
        argv.remove("--debug")
    trains = argv[:1] in (["run"], ["demo"])
    return exit_status(lambda: _dispatch(argv), debug=debug, to_debug="add --debug", trains=trains)


def exit_status(command: Callable[[], int], *, debug: bool, to_debug: str, trains: bool) -> int:
    """Run a command and return its exit status, as :func:`main`; an error is printed on one line.

    With ``debug``, the traceback of an error is printed too; ``to_debug`` is how a user requests it.
    """
    try:
        status = command()
        sys.stdout.flush()  # here, where an error is reported
        return status
    except Preempted as stop:
        status, message = 128 + stop.signal, str(stop)
    except KeyboardInterrupt:
        status, message = 130, "interrupted" + "; repeat the command to resume from the last checkpoint" * trains
    except BrokenPipeError:  # the reader of a table exited, as `head` does
        _discard_stdout()
        return 0
    except Exception as error:
        if debug:
            traceback.print_exc()
        status, message = _describe(error, to_debug)
    print_note(f"cab: {' '.join(message.splitlines())}")
    return status


def _describe(error: Exception, to_debug: str) -> tuple[int, str]:
    """Return the exit status and the message for an error of a command."""
    if isinstance(error, (UserError, ExitError)):
        return 2, f"error: {error}"
    path = getattr(error, "filename", None)
    if is_full_disk(error):
        _discard_stdout()
        return 2, f"error: no space left on the disk of {path or 'the output'}; free some space and repeat the command"
    if isinstance(error, OSError) and path is not None:
        return 2, f"error: {path!s:.200}: {error.strerror}; name another file or folder"
    return 3, f"internal error: {type(error).__name__}: {first_line(error)} ({to_debug} for the traceback)"


def _discard_stdout() -> None:
    """Redirect stdout to the null device, so that Python does not fail to write the rest of it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def program() -> NoReturn:
    """Run ``cab`` as a process; one of several processes exits without finalizing the interpreter.

    Threads of gloo are still alive then (torch's caches for ddp and fsdp hold their group). A thread that requests the
    interpreter during its finalization makes the process hang or abort.
    """
    status = main()
    with contextlib.suppress(UserError):  # main has reported it
        if "cab.runner.processes" in sys.modules and sys.modules["cab.runner.processes"].find_processes().count > 1:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    sys.exit(status)


class _Parser(argparse.ArgumentParser):
    """Parser that reports a mistake on one line, without the usage, and with the nearest right form."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            is_verb = isinstance(action, argparse._SubParsersAction)
            kind = (*action.option_strings, "subcommand" if is_verb else str(action.metavar or action.dest))[0]
            raise unknown_name(kind, str(value), map(str, action.choices))

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            if action.nargs != "+" or "," not in arg_string:
                raise
            words = " ".join((action.option_strings[-1], *arg_string.replace(",", " ").split()))
            raise UserError(f"'{arg_string}' has commas; separate the values by spaces: `{words}`") from None

    def read(self, arguments: list[str], *, is_intermixed: bool) -> argparse.Namespace:
        """Parse the arguments; UserError for an unknown flag, and for ``task=lstf`` where ``--task lstf`` is meant."""
        flags = set(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and arguments and arguments[0] in action.choices:
                flags |= set(action.choices[arguments[0]]._option_string_actions)
        parse = self.parse_known_intermixed_args if is_intermixed else self.parse_known_args
        for argument in arguments:
            key, equals, value = argument.partition("=")
            if equals and f"--{key}" in flags and not Path(argument).exists():
                raise UserError(f"'{argument}' is written as in cab run; write `--{key} {value}`")
        namespace, unknown = parse(arguments)
        for argument in unknown:
            if argument.startswith("-"):
                raise unknown_flag(argument.partition("=")[0], flags)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return namespace

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`")


def _dispatch(argv: list[str]) -> int:
    name, *arguments = argv or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name == "--version":
        print(f"cab {version('cab-benchmark')}")
        return 0
    if name not in COMMANDS:
        raise unknown_name("command", name, COMMANDS)
    for argument in filter(EMPTY_ARGUMENT.fullmatch, arguments):
        raise UserError(
            f"an argument of cab {name} is empty, '{argument}'; remove it with its flag, or give it a value"
        )
    log_to_terminal(logging.WARNING, "cab: %(message)s")
    module = importlib.import_module(f"cab.cli.{name}")
    if name == "run":  # its arguments are Hydra's overrides
        return module.run(arguments)
    parser = _Parser(prog=f"cab {name}", description=COMMANDS[name])
    _, _, parser.epilog = (module.__doc__ or "").partition("\n\n")
    if parser.epilog:
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
    module.add_arguments(parser)
    return module.run(parser.read(arguments, is_intermixed=name in WITH_OPTIONS))


def _help() -> str:
    usage = "usage: cab COMMAND [...]   (cab COMMAND --help for details; --debug shows tracebacks)"
    lines = [
        usage,
        "",
        "Train and score attention mechanisms in the seven tasks of the CAB paper; check and time them.",
    ]
    for title, entries in {**COMMAND_GROUPS, "examples": EXAMPLE_COMMANDS}.items():
        width = max(map(len, entries))
        lines += ["", f"{title}:", *(f"  {name:<{width}}  {text}" for name, text in entries.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    # `python -m`, as torchrun starts us, puts the working folder first: a tasks.py there must not replace ours.
    if not sys.flags.safe_path and Path(sys.path[0]).resolve() != Path(__file__).resolve().parents[2]:
        del sys.path[0]
    program()
