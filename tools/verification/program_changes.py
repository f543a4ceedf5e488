"""Change the program of a run in many ways, and report at which places the change is seen.

    python -m tools.verification.program_changes [WORDS_OF_A_NAME...]

Each change is made to a copy of this project or to a user's file. A new process then uses results of the program before
it: a cached record, an interrupted run, a mean over seeds, the reference results, and the cells passed to a pool or to
Slurm; with SLURM_CONF (scripts/with_slurm.sh), real jobs run some of them. The table has one row per change: ``seen``,
``warned`` (used with a warning) or ``MISSED``. Some changes are declared as not seen (docs/howto/share-results.md);
others are no changes, and must be the ``same``.
"""

from __future__ import annotations

import importlib
import json
import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tools.verification.program_cases import CHANGES, Change, configuration

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cab", "attentions", "backbones", "tasks", "engines", "configs", "results")
PLACES = ("cached", "resumed", "averaged", "reference", "pool, Slurm")
LIBRARIES = ("torch", "pandas", "hydra", "yaml", "filelock", "tqdm", "matplotlib.pyplot", "torch._dynamo")


def make_baseline(attention: str, folder: Path) -> dict[str, str]:
    """Run seed 1, and interrupt seed 3 after its first checkpoint."""
    from cab.errors import Preempted
    from cab.runner.run import run_cell

    run_cell(configuration(attention, folder, 1))
    checkpoints = importlib.import_module("engines.torch.checkpoints").Checkpoints
    save = checkpoints.save

    def interrupted(self: Any, *args: Any, **kwargs: Any) -> None:
        save(self, *args, **kwargs)
        raise Preempted(15)

    checkpoints.save = interrupted
    try:
        run_cell(configuration(attention, folder, 3))
    except Preempted:
        return {}
    raise AssertionError("the run was not interrupted")


def places(attention: str, folder: Path, *, pool: bool) -> dict[str, str]:
    """Return what becomes of the change at each place."""
    from cab.errors import UserError
    from cab.results.load import OWN, load
    from cab.runner.cell import Cell
    from cab.runner.report import ExistingRecords, Job, Report, cells_to_run
    from cab.runner.run import run_cell

    log: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda entry: log.append(entry.getMessage())  # type: ignore[assignment, method-assign]
    logging.getLogger().addHandler(handler)
    logging.getLogger("cab").setLevel(logging.INFO)
    first = configuration(attention, folder, 1)
    found = {}
    try:
        record = ExistingRecords().find(Cell.from_config(first))
        warned = any("cached: " in line for line in log)
        found["cached"] = "seen" if record is None else "warned" if warned else "same"
    except UserError as error:
        found["cached"] = "seen" if "was measured with" in str(error) else f"{error}"
    report = Report()
    passed = list(cells_to_run([Job(first, "")], report))
    found["pool, Slurm"] = "seen" if passed or report.failures else "same"
    log.clear()
    if pool:
        found["pool, Slurm"] += run_elsewhere(attention, folder)
    run_cell(configuration(attention, folder, 3))
    restarted = any("starts again" in line or "skipping checkpoint" in line for line in log)
    found["resumed"] = "seen" if restarted else "warned" if any("with a change" in line for line in log) else "same"
    results = load(folder).frame
    found["averaged"] = "seen" if results[results["seed"].isin([1, 3])]["attention"].nunique() > 1 else "same"
    table = load(folder, with_reference=True).frame
    is_own = table["source"] == OWN
    is_apart = set(table[is_own]["attention"]).isdisjoint(table[~is_own]["attention"])
    found["reference"] = "apart" if is_apart else "JOINED"
    found["log"] = " | ".join(log)[:600]
    return found


def run_elsewhere(attention: str, folder: Path) -> str:
    """Run a seed in a pool, and one on Slurm if there is one; return whether their rows are not that of seed 1."""
    from cab.config.run_config import SlurmConfig
    from cab.results.load import load_results
    from cab.runner.pool import run_in_pool
    from cab.runner.report import Job, Report
    from cab.runner.slurm import run_on_slurm

    report, seeds = Report(), [4]
    run_in_pool([Job(configuration(attention, folder, 4), "")], report, workers=1)
    if "SLURM_CONF" in os.environ:
        options = SlurmConfig(gpus=0, cpus=1, memory=2, partition="low")
        run_on_slurm([Job(configuration(attention, folder, 5), "")], report, options)
        seeds += [5]
    assert not report.failures, report.failures
    results = load_results(folder)
    names = [results[results["seed"].isin([1, seed])]["attention"].nunique() for seed in seeds]
    return "".join(" seen" if number > 1 else " same" for number in names)


def in_process(
    task: Callable[..., dict[str, str]], act: Callable[[], object], *args: Any, **kwargs: Any
) -> dict[str, Any]:
    """Call ``task`` in a process that has imported libraries but no module of this project."""

    def child(connection: Any) -> None:
        output = os.open(os.devnull, os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        try:
            act()
            result = task(*args, **kwargs)
        except BaseException:
            result = {"error": traceback.format_exc()}
        connection.send({**result, "cpu": time.process_time()})
        os._exit(0)

    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=child, args=(sender,))
    process.start()
    sender.close()
    try:
        result: dict[str, Any] = receiver.recv()
    except EOFError:
        result = {"error": "the process died", "cpu": 0.0}
    process.join()
    return result


def measure(change: Change, project: Path, folder: Path, bare: Path) -> dict[str, Any]:
    """Make a baseline and the change, and return what becomes of it; ``bare`` is a baseline of abc."""
    attention = f"{folder / 'user.py'}:Mine" if change.files else "abc"
    attention = next((word.removeprefix("attention=") for word in change.overrides), attention)
    for name, text in change.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    results, spent = folder / "results", 0.0
    if attention == "abc":
        shutil.copytree(bare, results)
    else:
        made = in_process(make_baseline, lambda: change.before and change.before(folder), attention, results)
        if "error" in made:
            return made
        spent = made["cpu"]
    originals = {}
    for name, (old, new) in change.edits.items():
        path = project / name if name.partition("/")[0] in PACKAGES else folder / name
        originals[path] = path.read_text()
        assert old in originals[path], (name, old)
        path.write_text(originals[path].replace(old, new))
    try:
        act = lambda: change.act and change.act(folder)  # noqa: E731
        result = in_process(places, act, attention, results, pool=change.pool)
    finally:
        for path, text in originals.items():
            path.write_text(text)
    return {**result, "cpu": spent + result["cpu"]}


def outcome(change: Change, result: Mapping[str, Any]) -> str:
    """Return the last column of the table."""
    if "error" in result:
        return "ERROR"
    seen = [result[place] for place in ("cached", "resumed", "averaged", "pool, Slurm")]
    if change.expected == "same":
        return "same" if all("seen" not in words and "warned" not in words for words in seen) else "FALSE ALARM"
    if all("same" not in words.split() for words in seen):
        return "seen"
    return "declared" if change.expected == "declared" else "MISSED"


def main(words: list[str]) -> int:
    """Print the table; exit status 1 if a change is missed."""
    chosen = [change for change in CHANGES if not words or any(word in change.name for word in words)]
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        project = folder / "project"
        for package in PACKAGES:
            shutil.copytree(ROOT / package, project / package, ignore=shutil.ignore_patterns("__pycache__"))
        os.environ |= {"PYTHONPATH": str(project), "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "MPLBACKEND": "agg"}
        os.environ |= {"CAB_CACHE": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.path.insert(0, str(project))
        sys.dont_write_bytecode = True
        for name in LIBRARIES:
            importlib.import_module(name)
        made = in_process(make_baseline, lambda: None, "abc", folder / "bare")
        assert "error" not in made, made["error"]
        total = made["cpu"]
        print("| change |", " | ".join(PLACES), "| outcome | CPU s |", flush=True)
        for number, change in enumerate(chosen):
            (folder / str(number)).mkdir()
            result = measure(change, project, folder / str(number), folder / "bare")
            total += result["cpu"]
            verdict = outcome(change, result)
            wrong += verdict not in ("seen", "declared", "same")
            cells = [change.name, *(str(result.get(place, "-")) for place in PLACES), verdict, f"{result['cpu']:.1f}"]
            print("|", " | ".join(cells), "|", flush=True)
            if verdict not in ("seen", "same", "declared"):
                print("   ", json.dumps(result.get("error") or result.get("log")), flush=True)
    print(f"{len(chosen)} changes, {wrong} wrong, {total:.0f} CPU seconds")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
