"""Hostile command lines, first every value in every group, then drawn at random, and what is wrong with an answer.

Only commands that do not train or measure are drawn: the command line is the subject, not the run.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import random
import re
from collections.abc import Iterator, Sequence

from cab.cli.main import main

VALUES = (
    *("", "null", "true", "no", "3", "-1", "0", "1.5", "-0", ".5", "1e999", "nan", "inf", "1_000", "0x10", "9" * 30),
    *("[]", "{}", "[a,b]", "{a:b}", "{name:abc}", "[[[[", "}", "a,b", "1,2", ",", "a,,b", "range(1,3)", "range(3)"),
    *("glob(*)", "choice(abc,vanilla)", "shuffle(1,2)", "sort(2,1)", "interval(0,1)", "int(x)", "str(3)", "tag(a)"),
    *("${seed}", "${nothing}", "${oc.env:HOME}", "${oc.env:CAB_NOTHING}", "${seed", "???", "$(x)", "%s", "{0}"),
    *(
        "'",
        '"',
        "'a b'",
        '"a',
        "\\",
        "a\\",
        "é",
        "中文",
        "\n",
        "a\nb",
        "\t",
        "\x1b[31m",
        "\u202e",
        "\udc80",
        "x" * 3000,
    ),
    *(
        "/",
        "..",
        "/dev/null",
        "/dev/full",
        "file",
        "folder",
        "nothing/here",
        "~",
        "~root",
        "file.py:A",
        "exits.py:A",
        "exits_at_once.py:A",
        "folder:A",
        "./file",
    ),
    *("a.py", ":", "a:b:c", "=", "==", "@a", "abc@b", "vanilla", "abc", "lstf", "synthetic", "csv", "None", "False"),
)
KEYS = (
    *("task", "dataset", "backbone", "attention", "pattern", "preset", "seed", "device", "engine", "force", "retry"),
    *(
        "logger",
        "cluster",
        "trainer",
        "data",
        "data_root",
        "results_dir",
        "other_attention",
        "suite",
        "hydra",
    ),
    *("trainer.batch_size", "trainer.betas", "trainer.num_workers", "trainer.max_steps", "trainer.validate_every"),
    *("attention.num_landmarks", "backbone.dropout", "backbone.embed_dim", "task.features", "task.seq_len"),
    *(
        "cluster.workers",
        "cluster.partition",
        "cluster.extra",
        "cluster.setup",
        "logger.project",
        "data.download",
        "profile",
    ),
    *("seed.a", "pattern.a", "preset.a", "dataset.name", "dataset.a", "attention.name", "task.name", "trainer.name"),
    *("name", "defaults", "_target_", "", ".", "a.b.c", "trainer.", ".trainer", "size", "recipe", "trainer.betas.0"),
)
CELL = {"task": "lstf", "dataset": "synthetic", "backbone": "informer", "attention": "abc", "pattern": "NC"}
CELL |= {"preset": "smoke", "seed": "1", "trainer.max_steps": "4", "device": "cpu"}
GROUPS = ("task", "dataset", "backbone", "attention", "pattern", "preset", "engine", "logger", "cluster", "trainer")
READ_ONLY = (["--dry-run"], ["--explain"], ["--cfg", "job"])
FLAGS = ("-m", "--multirun", "--retry", "--retry=failed", "--cfg", "--cfg=job", "--help", "-h", "--debg", "-x", "--")
COMMANDS = (
    *(["status"], ["list"], ["data", "list"], ["list", "tasks"], ["list", "backbones"], ["show", "abc"]),
    *(
        ["data", "verify"],
        ["params", "file"],
        ["verify", "--list-checks"],
        ["crossover", "file"],
        ["score"],
        ["correlation"],
    ),
    *(["suite", "validate"], ["paper", "taxonomy"], ["paper", "table3"], ["completion", "bash"], ["reproduce", "file"]),
    *(["leaderboard", "--format", "markdown"], ["analyze", "dilution"], ["efficiency", "--lengths", "0"], ["nothing"]),
)
OPTIONS = (
    *("--csv", "--out", "--preset", "--pattern", "--task", "--dataset", "--normalization", "--show", "--protocol"),
    *("--baseline", "--latest-version", "--data-root", "--tolerance", "--device", "--source", "--rows", "--costs"),
)


PREFIXES, SIGNS = ("", "+", "++", "~"), ("=", "", "@")
REFUSED = (
    *("logger=false", "trainer=3", "data=3", "cluster=[a]", "logger=nothing", "cluster.nothing=1", "cluster.setup=[]"),
    *("trainer.num_workers=100000", "cluster.workers=100000", "cluster.workers_per_gpu=100000", "device=nothing"),
    *("attention=exits.py:A", "attention=exits_at_once.py:A", "attention=folder:A", "attention=file:A"),
    *("attention.num_landmarks=0", "attention=abc@b", "hydra.run.dir=x", "engine=nothing", "~seed", "seed=-1"),
)
"""Mistakes, which ``--dry-run`` and ``--explain`` refuse as a run does."""
ACCEPTED = ("./file.py:A", "folder/../file.py:A", "größe.py:A", "it's a file.py:A")
"""Attentions in files that are valid, however their paths are written."""


def directed_commands(seed: str) -> Iterator[list[str]]:
    """Yield commands that have every value in every group, and every key, option, flag and command at least once.

    The seed determines which values the other keys and options have.
    """
    values = random.Random(seed).sample(VALUES, len(VALUES))
    for number, (group, value) in enumerate(itertools.product(GROUPS, VALUES)):
        yield _run_with(f"{group}={value}", number)
    turns = itertools.cycle(values)
    for number, (key, _) in enumerate(itertools.product(KEYS, range(8))):
        yield _run_with(f"{key}={next(turns)}", number)
    for number, (prefix, key, sign) in enumerate(itertools.product(PREFIXES, ("trainer.betas", "abc", "seed"), SIGNS)):
        yield _run_with(f"{prefix}{key}{sign}{next(turns)}", number)
    for flag, read_only in itertools.product(FLAGS, READ_ONLY):
        yield ["run", *read_only, *(f"{key}={value}" for key, value in CELL.items()), flag]
    for command, option in itertools.product(COMMANDS, ("", *OPTIONS)):
        yield [*command, option, next(turns)] if option else list(command)
    for number, value in enumerate(VALUES):
        yield [*COMMANDS[number % len(COMMANDS)], value]


def expected_commands() -> Iterator[tuple[list[str], int]]:
    """Yield commands with the exit status that they must have."""
    for read_only in READ_ONLY[:2]:
        for override in REFUSED:
            yield _run_with(override, read_only=read_only), 2
        for name in ACCEPTED:
            yield _run_with(f"attention={name}", read_only=read_only), 0


def _run_with(override: str, number: int = 0, *, read_only: Sequence[str] = ()) -> list[str]:
    """The cell with an override, which replaces the one of the same key."""
    key = override.partition("=")[0]
    cell = [f"{name}={value}" for name, value in CELL.items() if name != key]
    return ["run", *(read_only or READ_ONLY[number % len(READ_ONLY)]), *cell, override]


def draw_command(seed: str, number: int) -> list[str]:
    """The arguments of command ``number``, which depend on the seed and the number alone."""
    draw = random.Random(f"{seed} {number}")
    arguments = _draw_run(draw) if draw.random() < 0.6 else _draw_other(draw)
    return [_damaged(argument, draw) if draw.random() < 0.05 else argument for argument in arguments]


def _draw_run(draw: random.Random) -> list[str]:
    cell = dict(CELL)
    if draw.random() < 0.2:
        del cell[draw.choice(list(cell))]
    overrides = [f"{key}={value}" for key, value in cell.items()]
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        prefix = draw.choice(("", "", "", "", "+", "++", "~"))
        overrides.append(
            f"{prefix}{draw.choice(KEYS)}{draw.choice(('=', '=', '=', '=', '', '@'))}{draw.choice(VALUES)}"
        )
    flags = [draw.choice(FLAGS)] if draw.random() < 0.1 and len(cell) == len(CELL) else []
    draw.shuffle(overrides)
    return ["run", *draw.choice(READ_ONLY), *overrides, *flags]


def _draw_other(draw: random.Random) -> list[str]:
    arguments = [*draw.choice(COMMANDS)]
    for _ in range(draw.choice((0, 1, 1, 2))):
        arguments += [draw.choice(OPTIONS)] if draw.random() < 0.6 else []
        arguments += [draw.choice(VALUES)] if draw.random() < 0.8 else []
    return arguments


def _damaged(argument: str, draw: random.Random) -> str:
    place = draw.randrange(len(argument) + 1)
    return argument[:place] + draw.choice("=,.'\"\\@~+${}[]() \té\0:/-") + argument[place + draw.randrange(2) :]


def fault_of(arguments: Sequence[str], expected: int | None = None) -> str:
    """Run a command in this process; return what is wrong with its answer, or an empty text.

    Args:
        arguments: the command.
        expected: the exit status that it must have; by default any that a command can have.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(list(arguments))
        except SystemExit as stop:  # of argparse, which prints the usage
            return "" if stop.code in (0, 2) else f"SystemExit({stop.code!r})"
        except BaseException as error:
            return f"{type(error).__name__}: {error}"
    said = err.getvalue()
    if "internal error" in said or "Traceback" in said + out.getvalue():
        return said
    if status not in ((0, 1, 2) if expected is None else (expected,)):
        return f"status {status}: {said}"
    errors = [line for line in said.splitlines() if line.startswith("cab: error: ")]
    if len(errors) != (status == 2) or (status == 2 and not said.endswith(f"{errors[0]}\n")):
        return f"status {status} with {len(errors)} errors: {said}"
    return "" if not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", said) else f"control characters: {said!r}"
