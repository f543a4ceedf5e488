"""The commands of docs/paper/transnormer.md bring all data sets, and run in a few steps."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from cab.cli.main import main
from cab.data.sources import data_sets
from tests.documents import ROOT, commands_of

PAGE = (ROOT / "docs" / "paper" / "transnormer.md").read_text()
COMMANDS = commands_of(PAGE)


def test_all_data_sets_of_its_tasks_are_brought() -> None:
    brought = {name for command in COMMANDS if command.startswith("cab data download") for name in command.split()[3:]}
    assert brought & set(data_sets()) >= {name for name, each in data_sets().items() if "glue" in each.tasks}
    assert {"wikitext103", "gpt2_bpe"} <= brought


@pytest.mark.slow
def test_its_commands_run_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a few steps, one seed and this process; nothing is brought from hosts.

    The published fine-tuning is listed without its pretraining, which takes days.
    """
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data" / "wikitext-2"
    folder.mkdir(parents=True)
    for part, lines in (("train", 400), ("valid", 40), ("test", 40)):
        (folder / f"{part}.txt").write_text(
            " = Crabs = \n A crab of ten legs walks to the side of the sea . \n" * lines
        )
    changes = {"DATA": str(tmp_path / "data"), "--steps 100": "--steps 4", "seed=1,2,3": "seed=1"}
    changes |= {
        " task.pretrained=results/local": "",
        ",6e-5,1e-4": "",
        " 1024 2048 3072 4096 5120": " 64",
        "--repeats 9": "--repeats 1",
    }
    for command in COMMANDS:
        if command.startswith("cab data download"):
            continue
        for shown, meant in changes.items():
            command = command.replace(shown, meant)
        words = shlex.split(command)[1:]
        if "preset=mini" in words:
            words.append("trainer.max_steps=4")
        assert main(words) == 0, command
    assert (tmp_path / "board" / "glue.csv").read_text().count("pretrained on synthetic for 4 steps") == 2
