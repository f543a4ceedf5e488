"""Every command of the README works, its results are the committed ones, and the wheel runs outside the checkout."""

import importlib
import re
import shutil
import sys

import pytest
import torch

from cab.cli.main import EXAMPLE_COMMANDS
from cab.errors import EXAMPLE_COMMAND
from cab.registry.registries import ATTENTIONS, TASKS
from cab.results.figures import INK
from cab.results.published import published_cells
from cab.results.suite_board import recall_points, state_size
from tests.helpers.command import cab, run, run_python
from tests.helpers.documents import EXAMPLE, ROOT, UNTIMED_OPTION, commands_of, run_shown, runnable
from tools.site import readme_figure

README = (ROOT / "README.md").read_text()
COMMANDS = commands_of(README)
FIRST_SCREEN = README.partition("## ")[0]


def commands_in_order() -> list[str]:
    """Return the commands of the blocks, and those with arguments within sentences."""
    parts = re.split(r"(^```.*?^```)", README, flags=re.MULTILINE | re.DOTALL)
    return [c for part in parts for c in commands_of(part) or re.findall(r"`(cab [a-z]+ [^`]+)`", part)]


def test_its_first_screen_names_the_seven_tasks_as_they_are_registered():
    """Of each task: backbones, data sets but the generated ones, and patterns; those of Table 3 are bold."""
    table = re.findall(r"^\| (\w+) \| [\w -]+ \| (`.*?) \| (`.*?) \| (.*?) \|$", FIRST_SCREEN, re.MULTILINE)
    assert [row[0] for row in table] == ["TTS", "Sum", "LSTF", "PCC", "LM", "MLM", "SR"]
    published = {(cell.task, cell.pattern) for cell in published_cells()}
    assert {task for task, _ in published} == {name.lower() for name, *_ in table}
    for name, backbones, datasets, patterns in table:
        task = TASKS.get(name.lower())
        only = dict(re.findall(r"`(\w+)`(?: \((\w+)\))?", backbones))
        assert only.keys() == task.names.keys(), name
        assert all(" ".join(task.backbones[backbone]) == pattern for backbone, pattern in only.items() if pattern)
        assert [*re.findall(r"`(\w+)`", datasets), "synthetic"] == list(task.datasets), name
        assert set(re.findall(r"\w\w", patterns)) == {pattern for each in task.backbones.values() for pattern in each}
        bold = {(name.lower(), pattern) for pattern in re.findall(r"\*\*(\w\w)\*\*", patterns)}
        assert bold == {each for each in published if each[0] == name.lower()}, name


@pytest.mark.slow
def test_its_commands_run_one_after_another(tmp_path):
    (tmp_path / "gated_mean.py").write_text(EXAMPLE)
    commands = runnable(commands_in_order())
    assert len(commands) == len(set(commands)) >= 18
    assert [command for command in COMMANDS if command and command not in commands] == [
        "git clone REPOSITORY_URL cab && cd cab",
        "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make setup",
        "source .venv/bin/activate",
    ]
    assert EXAMPLE_COMMAND in commands
    for shown_first in EXAMPLE_COMMANDS.values():
        assert any(command.startswith(shown_first) for command in commands), shown_first
    outputs = {command: run_shown(command, tmp_path) for command in commands}
    assert outputs["cab status results/local"].count("finished") == 9, "LSTF with M and S, and PCC"
    for file in ("index.html", "leaderboard.csv", "records.csv"):
        assert (tmp_path / "build/board" / file).stat().st_size > 100
    assert (tmp_path / "results/local/leaderboard/index.html").stat().st_size > 10_000
    published, mine = (output for command, output in outputs.items() if command.startswith("cab paper table3"))
    assert re.search(r"^(† )?abc .*\d\.\d\d\d +-?\d\.\d+ +1$", published, re.MULTILINE), "all metrics and the index"
    assert re.search(r"^(† )?GatedMean .*\d\.\d", mine, re.MULTILINE)


def test_its_python_expression_builds_an_attention():
    [expression] = re.findall(r"`(cab\.build_attention\(.*?\))`", README)
    attention = eval(expression, {"cab": importlib.import_module("cab")})
    tokens = torch.randn(2, 5, 64)
    state = attention.init_state(batch_size=2)
    for index, token in enumerate(tokens.unbind(1)):
        step, state = attention.step(token, state)
        torch.testing.assert_close(step, attention(tokens)[:, index], atol=1e-4, rtol=1e-4)


def test_its_counts_of_attentions_are_those_of_the_registry():
    text = " ".join(FIRST_SCREEN.split())
    tested = [entry.name for entry in ATTENTIONS if entry.name not in ("none", "eager", "flash")]
    assert f"[{len(tested)} that it contains]" in text
    linear = [[*map(str, entry.patterns)] for entry in ATTENTIONS if entry.complexity == "n"]
    cross = [patterns for patterns in linear if {"NS", "NC"} <= {*patterns}]
    assert f"{len(cross)} attentions of linear time" in text
    assert f"NS and NC, {sum('CC' in patterns for patterns in cross)} of them also CC" in text


def test_its_results_are_those_of_the_committed_records(tmp_path, monkeypatch):
    """If this fails, run ``python -m tools.site.readme_figure``."""
    committed = {name: getattr(readme_figure, name) for name in ("README", "PAPER", "FIGURE")}
    for name, path in committed.items():
        monkeypatch.setattr(readme_figure, name, tmp_path / path.name)
        (tmp_path / path.name).write_text(readme_figure.BLOCK.sub("", path.read_text()))
    monkeypatch.setattr(readme_figure, "ROOT", tmp_path)
    readme_figure.main()
    for name in ("README", "PAPER"):
        assert (tmp_path / committed[name].name).read_text() == committed[name].read_text(), name
    figures = [path.read_text() for path in (committed["FIGURE"], tmp_path / committed["FIGURE"].name)]
    names = [re.findall(r">([^<>]+)</text>", figure) for figure in figures]
    assert names[0] == names[1]
    board = readme_figure.reference_suite().board
    points = recall_points(board, state_size(board))
    assert set(points.index) <= {name.removesuffix("*") for name in names[0]}, "a name at every mark"
    assert INK not in figures[0], "not readable on a dark background"


@pytest.mark.slow
def test_its_example_is_short_and_correct(tmp_path):
    assert len([line for line in EXAMPLE.splitlines() if line]) <= 14
    (tmp_path / "gated_mean.py").write_text(EXAMPLE)
    process = cab("verify", "gated_mean.py:GatedMean", "--csv", *UNTIMED_OPTION, cwd=tmp_path)
    assert process.returncode == 0, process.stdout
    assert ",NC," in process.stdout


@pytest.mark.slow
def test_the_wheel_runs_outside_the_checkout(tmp_path):
    """Build it, unpack it into a folder of its own, and start it with nothing of the checkout on the path."""
    build = ("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path))
    run_python(*build, str(ROOT), cwd=tmp_path)
    [wheel] = tmp_path.glob("*.whl")
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    shutil.unpack_archive(wheel, site, "zip")
    start = f"import sys; sys.path.insert(0, {str(site)!r}); import cab; assert {str(site)!r} in cab.__file__; "
    start += "from cab.cli.main import main; sys.exit(main(sys.argv[1:]))"
    options = "task=lstf dataset=synthetic attention=abc pattern=NC preset=smoke trainer.max_steps=2"
    for words in (f"run {options}", "paper audit", "paper params", "leaderboard results/local --out board"):
        process = run([sys.executable, "-c", start, *words.split()], work)
        assert process.returncode == 0, process.stderr
    assert (work / "board" / "index.html").exists()
