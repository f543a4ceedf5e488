"""Hostile command lines: each is answered, or refused in one line. The seed is `CAB_CONFORMANCE_SEED`.

Only commands that do not train or measure are drawn: the command line is tested, not the run.
"""

import contextlib
import io
import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from cab.cli.main import main
from cab.config.compose import option_names
from cab.registry.registries import ATTENTIONS
from tests.helpers.attentions.trust import SEED

VALUES = (
    *("", "null", "true", "3", "-1", "1.5", "-0", ".5", "1e999", "nan", "inf", "1_000", "0x10", "9" * 30, "None"),
    *("[]", "{}", "[a,b]", "{a:b}", "{name:abc}", "[[[[", "}", "a,b", "1,2", ",", "a,,b", "range(1,3)", "range(3)"),
    *("glob(*)", "choice(abc,vanilla)", "shuffle(1,2)", "sort(2,1)", "interval(0,1)", "int(x)", "str(3)", "tag(a)"),
    *("${seed}", "${nothing}", "${oc.env:HOME}", "${oc.env:CAB_NOTHING}", "${seed", "???", "$(x)", "%s", "{0}"),
    *("'", '"', "'a b'", "\\", "a\\", "é", "中文", "\n", "a\nb", "\t", "\x1b[31m", "\u202e", "\udc80", "x" * 3000),
    *("/", "..", "/dev/null", "/dev/full", "file", "folder", "nothing/here", "~", "~root", "file.py:A", "exits.py:A"),
    *("folder:A", "a.py", ":", "a:b:c", "=", "==", "@a", "abc@b", "vanilla", "abc", "lstf", "synthetic", "csv"),
)
KEYS = (
    *option_names(),
    *("suite", "hydra", "seed.a", "attention.name", "trainer.name", "name", "defaults", "size", "recipe", "_target_"),
    *("", ".", "a.b.c", "trainer.", ".trainer", "attention.num_landmarks", "backbone.embed_dim", "task.seq_len"),
)
CELL = {"task": "lstf", "dataset": "synthetic", "backbone": "informer", "attention": "abc", "pattern": "NC"}
CELL |= {"preset": "smoke", "seed": "1", "trainer.max_steps": "4", "device": "cpu"}
READ_ONLY = (["--dry-run"], ["--explain"], ["--cfg", "job"])
FLAGS = ("-m", "--multirun", "--retry", "--retry=failed", "--cfg", "--help", "-h", "--debg", "-x", "--")
COMMANDS = (
    *("status", "list", "data list", "list tasks", "show abc", "data verify", "params file", "verify --list-checks"),
    *("crossover file", "score", "correlation", "suite validate", "nothing", "paper table13", "paper table3"),
    *("completion bash", "reproduce file", "analyze dilution", "leaderboard --format markdown"),
    "efficiency --lengths 0",
)
OPTIONS = (
    *("--csv", "--out", "--preset", "--pattern", "--task", "--dataset", "--normalization", "--show", "--protocol"),
    *("--baseline", "--latest-version", "--data-root", "--tolerance", "--device", "--source", "--rows", "--costs"),
)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ATTENTIONS, "_entries", {entry.name: entry for entry in ATTENTIONS})
    Path("folder").mkdir()
    Path("file").write_text("no, table\n1, 2\n")
    Path("file.py").write_text("from attentions.softmax import VanillaAttention\nclass A(VanillaAttention): pass\n")
    Path("exits.py").write_text("raise SystemExit(7)\n")


def run_with(override: str, *flags: str) -> list[str]:
    """Return the cell with an override, which replaces the one of the same key."""
    cell = {key: value for key, value in CELL.items() if key != override.partition("=")[0]}
    return ["run", *flags, *(f"{key}={value}" for key, value in cell.items()), override]


def drawn_command(number: int) -> list[str]:
    """Return command ``number``, which depends on the seed and the number alone."""
    draw = random.Random(f"{SEED} {number}")
    if draw.random() < 0.6:
        prefix, sign = draw.choice(("", "", "", "+", "++", "~")), draw.choice(("=", "=", "=", "", "@"))
        arguments = run_with(f"{prefix}{draw.choice(KEYS)}{sign}{draw.choice(VALUES)}", *draw.choice(READ_ONLY))
        arguments += [draw.choice(FLAGS)] if draw.random() < 0.1 else []
    else:
        arguments = draw.choice(COMMANDS).split()
        for _ in range(draw.choice((0, 1, 1, 2))):
            arguments += [draw.choice(OPTIONS)] if draw.random() < 0.6 else []
            arguments += [draw.choice(VALUES)] if draw.random() < 0.8 else []
    return [damaged(argument, draw) if draw.random() < 0.05 else argument for argument in arguments]


def damaged(argument: str, draw: random.Random) -> str:
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
    errors = [line for line in said.splitlines() if line.startswith("cab: error: ")]
    if "internal error" in said or "Traceback" in said + out.getvalue() or status not in (0, 1, 2):
        return f"status {status}: {said}"
    if len(errors) != (status == 2):
        return f"status {status} with {len(errors)} errors: {said}"
    return "" if not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", said) else f"control characters: {said!r}"


@pytest.mark.drawn
@pytest.mark.slow
def test_no_command_line_ends_in_an_internal_error():
    commands = [drawn_command(number) for number in range(600)]
    faults = [(arguments, fault) for arguments in commands if (fault := fault_of(arguments))]
    assert not faults, f"CAB_CONFORMANCE_SEED={SEED}: {len(faults)} commands, the first: {faults[0]}"


def test_a_fault_is_found(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("a bug")

    assert not fault_of(["list", "tasks"])
    monkeypatch.setattr("cab.cli.list.Table.of", broken)
    assert "internal error: ZeroDivisionError: a bug" in fault_of(["list", "tasks"])
