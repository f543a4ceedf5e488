"""`cab`: one program, one module a command; nothing heavy is imported before a command needs it."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from cab.cli.terminal import log_to_terminal
from cab.errors import UserError, unknown_name
from cab.files.sanitize import printable
from cab.records.results import EXAMPLE_COMMAND
from cab.runner.faults import Preempted
from cab.runner.processes import find_processes

COMMANDS = {
    "run": "train and evaluate one cell, or a sweep of cells with -m",
    "reproduce": "run the cell of a result again and compare the scores",
    "status": "the status of every run that was started in a results folder",
    "list": "what is registered: attentions, backbones, tasks, runnable cells",
    "data": "the published data sets: list them, get them, check them",
    "params": "parameter counts of the paper preset, beside the published ones",
    "verify": "is an attention correct? look-ahead, decoding, padding, limits, growth",
    "efficiency": "time and memory of attentions against length",
    "crossover": "from which length on an attention is cheaper than softmax attention",
    "analyze": "what attentions do in a network: gradients of their scores, dilution of their weight",
    "score": "compositional index of results",
    "correlation": "correlation between patterns and between tasks",
    "suite": "do the small generated tasks measure attention? checked on their records",
    "leaderboard": "one page of tables and plots from results",
    "paper": "the published tables, recomputed and compared with this implementation",
    "completion": "completion of commands, groups and values for bash and zsh",
}


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0, 1 for an internal error, 2 for the user's mistake."""
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in argv
    if debug:
        argv.remove("--debug")
    try:
        return _dispatch(argv)
    except UserError as error:
        if debug:
            traceback.print_exc()
        _print_error(f"error: {error}")
        return 2
    except (PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError) as error:
        if debug:
            traceback.print_exc()
        _print_error(f"error: {error.filename}: {error.strerror}; name another file or folder")
        return 2
    except Preempted as stop:
        print(f"cab: {stop}", file=sys.stderr)
        return 128 + stop.signal
    except KeyboardInterrupt:
        again = "; the same command goes on from the last checkpoint" if argv[:1] == ["run"] else ""
        again = "; the same command goes on from there" if argv[:2] == ["data", "download"] else again
        _print_error(f"interrupted{again}")
        return 130
    except BrokenPipeError:  # the reader of a table went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            traceback.print_exc()
        words = str(error).splitlines()[0] if str(error) else ""
        _print_error(f"internal error: {type(error).__name__}: {words} (add --debug for the traceback)")
        return 1


def program() -> NoReturn:
    """``cab`` as a process. One of several leaves without the interpreter's own end.

    Threads of gloo live on there (what torch caches for ddp and fsdp holds their group), and one that then asks for the
    interpreter aborts the process: torchrun would stop the others, of which the first may still be evaluating.
    """
    status = main()
    with contextlib.suppress(UserError):  # of a launch that main has refused
        if find_processes().count > 1:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    sys.exit(status)


def _print_error(text: str) -> None:
    """One line, whatever is in the names that it speaks of."""
    print(f"cab: {printable(' '.join(text.splitlines()))}", file=sys.stderr)


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(_help())
        return 0
    if argv[0] == "--version":
        from importlib.metadata import version

        print(f"cab {version('cab-benchmark')}")
        return 0
    name, *rest = argv
    if name not in COMMANDS:
        raise unknown_name("command", name, COMMANDS)
    if any(argument == "" or (argument[:2] == "--" and argument[-1:] == "=") for argument in rest):
        raise UserError(f"an argument of cab {name} is empty; leave it out, or name what it stands for")
    log_to_terminal(logging.WARNING, "cab: %(message)s")
    module = importlib.import_module(f"cab.cli.{name.replace('-', '_')}")
    parser = argparse.ArgumentParser(prog=f"cab {name}", description=COMMANDS[name], exit_on_error=True)
    if name == "run":  # its arguments are Hydra's overrides
        return module.run(rest)
    module.add_arguments(parser)
    return module.run(parser.parse_args(rest))


FIRST = {
    "a first result, in seconds": EXAMPLE_COMMAND,
    "how good is an attention": "cab run suite=mini attention=abc cluster=local",
    "is it correct": "cab verify abc",
    "what does it cost": "cab efficiency abc performer --pattern NS --lengths 256 512 1024",
    "what results say, beside the field": "cab leaderboard --with-reference",
}
"""What people do, and a command for it; the README has each."""


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: cab COMMAND [...]   (cab COMMAND --help; add --debug to see tracebacks)",
            "",
            "The benchmark for attention mechanisms.",
            "",
            *lines,
            "",
            *(f"  {text + ':':<{max(map(len, FIRST)) + 1}}  {command}" for text, command in FIRST.items()),
        ]
    )


if __name__ == "__main__":
    # `python -m` puts the working folder first, as torchrun starts us: a tasks.py there must not replace ours.
    if not sys.flags.safe_path and Path(sys.path[0]).resolve() != Path(__file__).resolve().parents[2]:
        del sys.path[0]
    program()
