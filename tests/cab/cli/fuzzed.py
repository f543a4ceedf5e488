"""Command lines drawn at random, and what is wrong with the answer of `cab`.

Only commands that do not train or measure are drawn: the command line is the subject, not the run.
"""

from __future__ import annotations

import contextlib
import io
import random
import re
from collections.abc import Sequence

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
        "profile",
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


def fault_of(arguments: Sequence[str]) -> str:
    """Run a command in this process; return what is wrong with its answer, or an empty text."""
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
    if status not in (0, 1, 2):
        return f"status {status}: {said}"
    errors = [line for line in said.splitlines() if line.startswith("cab: error: ")]
    if len(errors) != (status == 2) or (status == 2 and not said.endswith(f"{errors[0]}\n")):
        return f"status {status} with {len(errors)} errors: {said}"
    return "" if not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", said) else f"control characters: {said!r}"
