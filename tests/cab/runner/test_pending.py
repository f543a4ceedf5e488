"""`cab status` shows the cells of a sweep that have not started; nothing is left of the list when the sweep ends."""

from collections import Counter

from cab.cli.main import main
from cab.runner import launch
from cab.runner.pending import PENDING_FOLDER, statuses_of

SWEEP = ["run", "-m", "task=lstf", "dataset=synthetic", "attention=vanilla", "pattern=NC", "seed=1,2", "device=cpu"]
SWEEP += ["preset=smoke", "trainer.max_steps=1"]


def test_an_interrupted_sweep_shows_every_cell_until_it_is_repeated(tmp_path, monkeypatch, capsys, cab):
    run, sweep = launch.run_cell, [*SWEEP, f"results_dir={tmp_path}"]

    def interrupt(config, **rest):
        if config["seed"] == 2:
            raise KeyboardInterrupt
        return run(config, **rest)

    monkeypatch.setattr(launch, "run_cell", interrupt)
    assert main(sweep) == 130
    assert Counter(str(found.status) for found in statuses_of(tmp_path)) == {"finished": 1, "pending": 1}
    capsys.readouterr()
    [row] = [line for line in cab("status", str(tmp_path)).out.splitlines() if "pending" in line]
    assert "expected 0.12 min (two CPU cores)" in row
    [listed] = (tmp_path / PENDING_FOLDER).iterdir()
    listed.with_name("cut.json").write_text(listed.read_text()[:50])
    monkeypatch.undo()
    assert main(sweep) == 0
    assert {str(found.status) for found in statuses_of(tmp_path)} == {"finished"}
    assert [path.name for path in (tmp_path / PENDING_FOLDER).iterdir()] == ["cut.json"]
