"""A results folder whose run is started, stopped, damaged, edited and resumed: what is on disk is true at all times.

A story is a line of steps, and behind an arrow what the log says. Each step is a rule of a state machine, with which
hypothesis makes up further stories.
"""

import builtins
import contextlib
import dataclasses
import errno
import functools
import io
import itertools
import json
import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest
import torch
from filelock import FileLock
from hypothesis import HealthCheck, seed, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from cab import UserError, load_results
from cab.errors import Preempted
from cab.records.record import Record, with_checksum
from cab.runner.folder import PROGRESS, cell_statuses
from cab.runner.run import run_cell
from tests.cab.runner.test_folder_hostile import Payload
from tests.helpers.attentions.trust import SEED
from tests.helpers.runs.fixtures import edit_program, troubled_config
from tests.helpers.runs.troubled import Troubled, trained

FULL = "/dev/full"
SETTINGS = {
    "best": ("trainer.validate_every=3", "trainer.checkpoint_every=2"),
    "average": ("trainer.validate_every=3", "trainer.checkpoint_every=2", "trainer.checkpoint_selection=average"),
}
SETTINGS["average"] += ("trainer.average_every=2", "trainer.average_count=3")
AGAIN = {"": [], "force": ["force=true"], "retry": ["retry=[finished,oom,diverged,failed]"], "oom": ["retry=[oom]"]}
TROUBLES = {
    "oom": ("oom", "OutOfMemoryError: CUDA out of memory", None),
    "crash": ("failed", "RuntimeError: something broke", None),
    "nan": ("diverged", "the training loss is NaN or infinite from step 3", 3),
}
"""Status, error and step of the record of a run with this trouble in step 3."""
REFUSED = {"full": "no space left", "deleted": "was deleted or moved during the run"}
"""Errors of a run that has no record: the disk is full, somebody deletes its folder."""
MOMENTS = ("cell.json", "step-00000002.ckpt", "best-00000003.pt", "step-00000006.ckpt", "weights.pt", "RECORD", "end")
"""Files whose replacement is interrupted; the end is the first deletion of progress, with the record written."""


def losses_of(folder: Path) -> list[float]:
    """The mean losses since the row before, in the rows of a run."""
    return pd.read_csv(folder / "metrics.csv")["loss"].tolist()


@functools.cache
def calm(selection: str) -> tuple[Record, list[float]]:
    """The record and the losses of a run that nothing interrupts."""
    with tempfile.TemporaryDirectory() as folder:
        record = trained(troubled_config(*SETTINGS[selection], f"results_dir={folder}"))
        return record, losses_of(Path(folder, record.hash))


def flipped(path: Path, state: Any) -> bytes:
    """The content of a file with one wrong bit in the data of its largest tensor, which torch does not notice."""
    content = bytearray(path.read_bytes())
    content[content.index(max(state.values(), key=torch.Tensor.numel).numpy().tobytes())] ^= 1
    return bytes(content)


def payload(path: Path) -> bytes:
    """A pickle that makes a file next to the results when it is loaded."""
    return pickle.dumps(Payload(path.parents[2] / "executed"))


WRONG_MOMENTS = {0: {"step": torch.ones(()), "exp_avg": torch.ones(3), "exp_avg_sq": torch.ones(3)}}
CHECKPOINTS = {
    "flipped": lambda path, state: flipped(path, state["network"]),
    "pickle": lambda path, state: payload(path),  # noqa: ARG005
    "shard": lambda path, state: state | {"shards": "many"},  # noqa: ARG005
    "pickled-shard": lambda path, state: (
        path.with_suffix(".0-of-1.shard").write_bytes(payload(path)) and state | {"shards": 1}
    ),
    "empty": lambda path, state: {"step": state["step"]},  # noqa: ARG005
    "optimizer": lambda path, state: state | {"optimizer": WRONG_MOMENTS},  # noqa: ARG005
    "history": lambda path, state: state | {"history": {"entries": 3}},  # noqa: ARG005
    "step": lambda path, state: state | {"step": 10_000},  # noqa: ARG005
}
"""The content of a damaged checkpoint."""
FILES = ("best", "no-best", "average", "no-average", "about", "cut", "relabeled", ".weights.pt-0000.tmp", "relic.txt")
"""Other damage: changed or missing weights, cell.json, the record, files of a killed process and of an earlier run."""


@contextlib.contextmanager
def full_disk(folder: Path, at: int) -> Iterator[None]:
    """Let number ``at`` of what is created and written below ``folder`` meet a full disk, as a real one reports it.

    Files are opened on /dev/full instead, so that the error comes from the system at the first flush. torch.save, which
    writes from C++, gets this path too. Files that are also read are not opened at all: /dev/full has no end.
    """
    open_file, save, numbers = open, torch.save, itertools.count(1)

    def is_hit(path: object) -> bool:
        if isinstance(path, int):
            path = Path(f"/proc/self/fd/{path}").readlink()
        is_below = isinstance(path, (str, os.PathLike)) and os.path.realpath(path).startswith(str(folder))
        return is_below and next(numbers) == at

    def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if set(mode) & set("wax+") and is_hit(file):
            if "+" in mode:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
            file, mode = FULL, mode.replace("x", "w")
        return open_file(file, mode, *arguments, **options)

    def creating(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(path: Any, *arguments: Any, **options: Any) -> Any:
            creates = function.__name__ == "mkdir" or (arguments and arguments[0] & os.O_CREAT)
            if creates and not Path(path).exists() and is_hit(path):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            return function(path, *arguments, **options)

        return called

    def saved(state: Any, path: Any, *arguments: Any, **options: Any) -> None:
        save(state, FULL if is_hit(path) else path, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        for owner, name, function in ((builtins, "open", opened), (io, "open", opened), (torch, "save", saved)):
            patch.setattr(owner, name, function)
        for name in ("open", "mkdir"):
            patch.setattr(os, name, creating(getattr(os, name)))
        yield


class ResultsFolder(RuleBasedStateMachine):
    code: ClassVar[str] = ""
    """The digest of a module of the project."""

    def __init__(self) -> None:
        super().__init__()
        self.place = tempfile.TemporaryDirectory()
        self.results = Path(self.place.name, "results")
        self.happened = True  # whether the last step did what it says
        self.select("best")

    @initialize(selection=st.sampled_from([*SETTINGS]))
    def select(self, selection: str) -> None:
        self.selection, (self.calm, self.losses) = selection, calm(selection)
        self.folder, self.path = self.results / self.calm.hash, self.results / f"{self.calm.hash}.json"
        type(self).code = "0" * 16

    def start(self, again: str, trouble: str = "") -> Any:
        Troubled.trouble_now = trouble
        try:
            return run_cell(troubled_config(*SETTINGS[self.selection], *AGAIN[again], f"results_dir={self.results}"))
        finally:
            Troubled.trouble_now = ""

    def record(self) -> Record | None:
        try:
            return Record.read(self.path)
        except UserError:
            return None

    def stored(self) -> bytes:
        return self.path.read_bytes() if self.path.exists() else b""

    def statuses(self) -> dict[str, str]:
        """Status and detail of the cell, if it has one."""
        found = cell_statuses(self.results) if self.results.exists() else []
        assert len(found) <= 1
        return {cell.status: cell.detail for cell in found}

    def files(self, *patterns: str) -> list[Path]:
        return sorted(path for pattern in patterns for path in self.folder.glob(pattern))

    @rule(again=st.sampled_from([*AGAIN]))
    def run(self, again: str = "") -> None:
        """A record that is there is used, if it is of this code; every other run ends as the calm one."""
        record = self.record()
        if record is None or again in ("force", "retry") or again == record.status:
            outcome = self.start(again)
            assert (outcome.kind, outcome.record.status, self.record()) == ("completed", "finished", outcome.record)
            assert self.files(*PROGRESS, "*.tmp") == []
            assert losses_of(self.folder) == self.losses
        elif record.program.project["backbones.made"] == self.code:
            before, statuses = self.stored(), self.statuses()
            assert self.start(again).kind == "cached"
            assert self.stored() == before
            assert statuses != {"finished": ""} or self.files(*PROGRESS) == []
        else:
            with pytest.raises(UserError, match=r"other code of the project \(backbones.made\)"):
                self.start(again)

    @rule(trouble=st.sampled_from([*TROUBLES, *REFUSED]))
    def fail(self, trouble: str) -> None:
        """In a run from its begin, since a resumed one could have the trouble in a validation."""
        if self.files("step-*"):
            return
        if trouble in REFUSED:
            before = self.stored()
            with pytest.raises(UserError, match=REFUSED[trouble]):
                self.start("retry", trouble)
            assert self.stored() == before
            return
        record, (status, error, step) = self.start("retry", trouble).record, TROUBLES[trouble]
        assert (record.status, record.step, [metric.value for metric in record.metrics]) == (status, step, [None, None])
        assert error in record.error
        assert "Traceback" in (self.folder / "traceback.txt").read_text()
        assert load_results(self.results)["value"].isna().all()

    @rule(
        number=st.sampled_from(["SIGTERM", "SIGINT", "SIGKILL"]),
        moment=st.sampled_from(MOMENTS),
        again=st.sampled_from([*AGAIN]),
    )
    def stop(self, number: str, moment: str, again: str = "") -> None:
        """A run in a child that gets a signal at a moment, if it comes to that; the old record stays until then."""
        name = self.path.name if moment == "RECORD" else moment
        pending, before = Path(self.place.name, "pending"), self.stored()
        pending.touch()
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)  # a fork has no other threads

            def hook(event: str, arguments: tuple[Any, ...]) -> None:
                is_moment = event == "os.rename" and str(arguments[1]).endswith(name)
                if (moment, event) == ("end", "os.remove"):
                    is_moment = "/step-" in str(arguments[0]) and self.path.exists()
                if is_moment and pending.exists():
                    pending.unlink()
                    os.kill(os.getpid(), signal.Signals[number])

            sys.addaudithook(hook)
            try:
                self.start(again)
                os._exit(0)
            except (Preempted, KeyboardInterrupt):
                os._exit(75)
            except BaseException as error:
                os._exit(64 if isinstance(error, UserError) else 1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status and moment != "end":
            assert self.stored() == before
        self.happened = not pending.exists()
        if self.happened:
            endings = (75,) if ".ckpt" in moment else (0, 75, -signal.Signals[number])
            assert status in ((-signal.SIGKILL,) if number == "SIGKILL" else endings)

    @rule(kind=st.sampled_from([*CHECKPOINTS, *FILES]))
    def damage(self, kind: str) -> None:
        self.happened = True
        weights = self.files(f"{kind.removeprefix('no-')}-*.pt")
        if kind in CHECKPOINTS and (checkpoints := self.files("step-*.ckpt")):
            try:
                content = CHECKPOINTS[kind](checkpoints[-1], torch.load(checkpoints[-1], weights_only=True))
            except (pickle.UnpicklingError, RuntimeError, KeyError, EOFError):  # it is damaged already
                self.happened = False
                return
            checkpoints[-1].write_bytes(content) if isinstance(content, bytes) else torch.save(content, checkpoints[-1])
        elif weights and kind.startswith("no-"):
            weights[-1].unlink()
        elif weights:  # those of another run, in a copied folder
            torch.save({name: value + 1 for name, value in torch.load(weights[-1]).items()}, weights[-1])
        elif kind == "about" and (self.folder / "cell.json").exists():
            (self.folder / "cell.json").write_text("{")
        elif kind == "cut" and self.path.exists():
            self.path.write_text("{")
        elif kind == "relabeled" and self.record():
            content = json.loads(self.path.read_text())
            self.path.write_text(json.dumps(with_checksum(content | {"cell": content["cell"] | {"attention": "abc"}})))
        elif kind in ("relic.txt", ".weights.pt-0000.tmp") and self.folder.exists():
            (self.folder / kind).touch()
        else:
            self.happened = False

    @rule()
    def edit(self) -> None:
        type(self).code = f"{int(self.code) + 1:016d}"

    @rule()
    def compete(self) -> None:
        """While another process runs the cell, this one changes nothing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / "lock"):
            before = {path: path.read_bytes() for path in self.results.rglob("*") if path.is_file()}
            assert self.start("retry").kind == "locked"
            assert {path: path.read_bytes() for path in self.results.rglob("*") if path.is_file()} == before

    @rule(at=st.integers(1, 16))
    def fill(self, at: int | str) -> None:
        """The disk is full at a write; whether the run needed it."""
        before, message = self.stored(), ""
        with full_disk(Path(self.place.name), int(at)):
            try:
                self.start("retry")
            except UserError as error:
                message = str(error)
        assert not message or (message[:13], self.stored()) == ("no space left", before)
        self.happened = bool(message)

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def lacks(self, name: str) -> bool:
        return not self.has(name)

    @invariant()
    def is_true(self) -> None:
        record = self.record()
        if record is not None and record.status == "finished":
            assert (record.metrics, record.history) == (self.calm.metrics, self.calm.history)
        statuses = self.statuses()
        of_record = {record.status if record else "broken"} if self.path.exists() else set()
        of_folder = {"interrupted", "broken"} if self.has("cell.json") else set()
        assert statuses.keys() <= of_record | of_folder
        assert bool(statuses) == bool(of_record | of_folder)
        steps = [int(path.stem.removeprefix("step-")) for path in self.files("step-*.ckpt")]
        last = f"checkpoint at step {steps[-1]}" if steps else "no checkpoint yet"
        assert statuses.get("interrupted", last) == last
        assert not Path(self.place.name, "executed").exists()

    def teardown(self) -> None:
        self.run("retry")
        assert self.statuses() == {"finished": ""}
        self.is_true()
        self.place.cleanup()


@pytest.fixture(autouse=True)
def _edited_code(monkeypatch):
    """Every run has executed a module of the project that is edited."""

    def edit(program):
        return dataclasses.replace(program, project={**program.project, "backbones.made": ResultsFolder.code})

    edit_program(monkeypatch, edit)


STORIES = [
    *(f"stop SIGKILL {moment}, damage .weights.pt-0000.tmp, run" for moment in MOMENTS),
    *(f"run, stop SIGTERM {moment} force, run force" for moment in MOMENTS[4::2]),
    "stop SIGTERM weights.pt, run -> resuming from step 8",
    "stop SIGINT step-00000006.ckpt, run -> resuming from step 4",
    "stop SIGKILL end, edit, run, run force",
    "run, stop SIGTERM step-00000006.ckpt retry, run, run retry -> resuming from step 7",
    "run, stop SIGKILL step-00000006.ckpt force, run, has step-00000004.ckpt, compete, run force -> from step 4",
    "stop SIGKILL step-00000006.ckpt, edit, run -> starts again from step 0",
    "fail oom, run, run oom -> resuming from step 2",
    "fail crash, run oom, run retry -> resuming from step 2",
    "run, damage relic.txt, run retry, has relic.txt, run force, lacks relic.txt",
    "fail nan, edit, run, run retry -> starts again from step 0",
    "fail crash, compete, run, run retry, edit, run, run force",
    "fail full, damage empty, run -> which is not of this run",
    *(f"stop SIGKILL step-00000006.ckpt, damage {kind}, run -> resuming from step 2; skipping" for kind in CHECKPOINTS),
    "fail full, damage pickle, run -> skipping unreadable checkpoint",
    "fail deleted, run, fail deleted, run",
    "stop SIGKILL weights.pt, damage best, run -> is missing or changed since it was saved",
    "select average, stop SIGKILL weights.pt, damage no-average, run -> is missing or changed since it was saved",
    "stop SIGKILL step-00000006.ckpt, damage about, run -> resuming from step 4",
    "run, damage cut, run -> is not a valid result record",
    "run, damage relabeled, run -> its cell has attention 'abc', its configuration 'vanilla'",
    "fill 1, fill 9, run",
    "fill 13, run",
]


@pytest.mark.parametrize("story", STORIES)
def test_a_story(story, caplog):
    if "fill" in story and not Path(FULL).exists():
        pytest.skip(FULL)
    caplog.set_level("INFO")
    steps, _, words = story.partition(" -> ")
    folder = ResultsFolder()
    for step in steps.split(", "):
        verb, *arguments = step.split()
        folder.happened = True
        assert getattr(folder, verb)(*arguments) is not False, step
        assert folder.happened, step
        folder.is_true()
    assert [word for word in words.split("; ") if word not in caplog.text] == []
    assert folder.statuses() == {"finished": ""}
    folder.place.cleanup()


@pytest.mark.drawn
@pytest.mark.slow
def test_drawn_stories():
    options = settings(max_examples=30, stateful_step_count=8, deadline=None, database=None)
    options = settings(options, suppress_health_check=[*HealthCheck])
    run_state_machine_as_test(seed(SEED)(ResultsFolder), settings=options)
