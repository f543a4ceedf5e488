"""Properties of every task, from its record: what is read, what it identifies, scores, learning, runs."""

import copy
import functools
import itertools
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from cab import Task, UserError
from cab.backbone_protocols import MaskedLM, RecurrentLM, SequenceToSequence, TokenLM
from cab.cli.main import main
from cab.registry.names import is_generated
from cab.registry.registries import BACKBONES, TASKS
from cab.runner.evaluation import DeviceBatches
from tests.helpers.command import the_record
from tests.helpers.runs.step_gradients import without_draws
from tests.helpers.tasks.records import DATA, FILES, RECORDS, network, ready


def protocol(task: str, backbone: str) -> type | None:
    cls = TASKS.get(task).cls
    return cls.protocol_of(BACKBONES.get(backbone).cls) if cls.required_protocols else None


NETWORKS = [  # the first backbone of each protocol
    (task, name, backbone)
    for task, name in DATA
    for backbone in {protocol(task, each): each for each in reversed(TASKS.get(task).backbones)}.values()
]
LOSSES = [case for case in NETWORKS if case[:2] not in FILES or case[1] == "retrieval"]  # which are of pairs
OF_TOKENS = (TokenLM, RecurrentLM, MaskedLM, SequenceToSequence)
BOUNDS: dict[str, tuple[float, float]] = {  # of a metric by its unit
    **dict.fromkeys(("%", "F, percent", "right words, percent"), (0.0, 100.0)),
    **dict.fromkeys(("of examples", "of class 1", "of answers", "all right"), (0.0, 1.0)),
    **dict.fromkeys(("correlation", ""), (-1.0, 1.0)),
    **dict.fromkeys(("per token", "per word", "per masked token"), (1.0, math.inf)),
    **dict.fromkeys(("standardized", "standardized^2", "x 1000", "dB", "a frame", "positions"), (0.0, math.inf)),
}


def files_of(task: str, name: str, folder: Path) -> Path | None:
    write = RECORDS[task].data[name].write
    if write is not None:
        write(folder)
    return None if write is None else folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Each task as it has read its data, which is done once."""

    @functools.cache
    def read(task: str, name: str) -> Any:
        return ready(task, files_of(task, name, tmp_path_factory.mktemp(name)), dataset=name)

    return lambda task, name: copy.copy(read(task, name))


def test_every_task_of_the_repository_has_a_record():
    assert {task.name for task in TASKS if task.location.module.startswith("tasks.")} == RECORDS.keys()


@pytest.mark.parametrize(("task", "options"), [(task, each) for task in RECORDS for each in RECORDS[task].refused])
def test_options_that_contradict_the_data_or_each_other_are_refused_by_name(task, options):
    entry, given = TASKS.get(task), dict(option.split("=") for option in options.split())
    dataset = given.pop("dataset", "synthetic")
    given = {name: yaml.safe_load(value) for name, value in given.items()}
    with pytest.raises(UserError, match=rf"\b{next(iter(given))}\b") as error:
        entry.cls(dataset=dataset, **entry.check_options(given, "task")).check()
    assert "\n" not in str(error.value)


def values(x: Any) -> list[Any]:
    if isinstance(x, Tensor):
        return x.tolist()
    if isinstance(x, dict):
        return [values(x[key]) for key in sorted(x)]
    return [values(each) for each in x] if isinstance(x, list | tuple) else [x]


def content(made: Any, *, seed: int, train: int = 0, count: int = 4) -> dict[str, list[Any]]:
    """The first examples of each split, with random numbers of a seed in evaluation and of another in training."""
    found = {}
    for split, rows in made.splits.items():
        torch.manual_seed(train if split == "train" else seed)
        examples = made.training_set if split == "train" else rows
        found[split] = values(examples.__getitems__([*range(min(count, len(examples)))]))
    return found


@pytest.mark.parametrize(("task", "name"), DATA)
def test_the_same_data_are_read_twice(task, name, tmp_path, made):
    """Evaluation data depend on no random number; no generated split is another one."""
    first, second = made(task, name), ready(task, files_of(task, name, tmp_path), dataset=name)
    assert first.fingerprint() == second.fingerprint()
    assert json.loads(json.dumps(first.fingerprint()))
    assert [*map(len, first.splits.values())] == [*map(len, second.splits.values())]
    shown = content(first, seed=0)
    assert shown == content(second, seed=5)
    assert all(shown.values())
    if "synthetic" in name or task == "probe":
        assert all(one != other for one, other in itertools.combinations(shown.values(), 2))


def kinds_of_files(folder: Path) -> list[Path]:
    files = [path for path in sorted(folder.rglob("*"), reverse=True) if path.is_file()]
    return [*{(path.parent.parent, path.suffix): path for path in files}.values()]


def identity(task: str, name: str, folder: Path) -> tuple[str, Any]:
    """The fingerprint of the data and what is read, or the error."""
    try:
        found = ready(task, folder, dataset=name)
    except UserError as error:
        return str(error), None
    return json.dumps(found.fingerprint()), content(found, seed=0, count=100)


@pytest.mark.parametrize(("task", "name"), FILES)
def test_what_is_read_depends_on_nothing_but_what_the_fingerprint_has(task, name, tmp_path):
    """A changed byte moves it, is refused in one line, or changes no example; the time of the file is as before."""
    files_of(task, name, tmp_path)
    usual = identity(task, name, tmp_path)
    for path in kinds_of_files(tmp_path):
        before, moved = path.read_bytes(), False
        for place in (len(before) // 5, len(before) // 2, len(before) - 3):
            changed = bytearray(before)
            changed[place] ^= 64
            path.write_bytes(changed)
            os.utime(path, (1, 1))
            found = identity(task, name, tmp_path)
            assert found[0] != usual[0] or found == usual, (path, place)
            assert "\n" not in found[0]
            moved |= found[0] != usual[0]
        assert moved, path
        path.write_bytes(before)
    assert identity(task, name, tmp_path) == usual


@pytest.mark.parametrize(("task", "name"), FILES)
def test_hidden_files_are_no_data_and_others_and_missing_ones_are_named(task, name, tmp_path, caplog):
    """Companions of macOS, and the checkpoints of notebooks; a file that is not read looks like one that is."""
    with pytest.raises(UserError, match=f"cab data download {name} --data-root"):
        ready(task, tmp_path, dataset=name)
    files_of(task, name, tmp_path)
    usual, kinds = ready(task, tmp_path, dataset=name).fingerprint(), kinds_of_files(tmp_path)
    for path in [path for path in tmp_path.rglob("*") if path.is_file()]:
        path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7\xb0")
        (path.parent / ".ipynb_checkpoints").mkdir(exist_ok=True)
        (path.parent / ".ipynb_checkpoints" / path.name).write_bytes(path.read_bytes())
    assert ready(task, tmp_path, dataset=name).fingerprint() == usual
    assert "left out" not in caplog.text
    others = [path for path in kinds if task not in ("glue", "lstf") and path.suffix not in (".json", ".csv", ".npy")]
    for path in others:  # all but lists, and files that are read by their names
        path.with_name(f"{path.name}.part").write_bytes(b"")
        ready(task, tmp_path, dataset=name)
        assert f"{path.name}.part" in caplog.text


@torch.no_grad()
@pytest.mark.parametrize(("task", "name", "backbone"), NETWORKS)
def test_scores_are_those_of_the_metrics_whatever_the_batches(task, name, backbone, tmp_path, made):
    """In their bounds, in batches of any size, after an interruption; baselines have the primary ones; with plots."""
    scored = copy.deepcopy(made(task, name))
    scored.limit = 7
    if task != "tts":  # whose utterances it would cut
        without_draws(scored)
    net = network(task, scored, backbone).eval()
    metrics = {metric.name: metric for metric in scored.metrics}

    def evaluated(size: int, finished: Path | None = None) -> tuple[float, dict[str, float]]:
        scored.evaluation_batch_size = size
        validation = scored.validate(net, DeviceBatches(torch.device("cpu"), seed=1, limit=7))
        return validation, scored.evaluate(net, DeviceBatches(torch.device("cpu"), seed=1, limit=7, finished=finished))

    validation, scores = evaluated(2, stored := tmp_path / "scores.jsonl")
    assert math.isfinite(validation)
    lines = stored.read_bytes().splitlines(keepends=True)
    stored.write_bytes(b"".join(lines[: len(lines) // 2]))
    assert evaluated(2, stored) == (validation, scores)
    others = evaluated(5)
    assert others[0] == pytest.approx(validation, rel=1e-4)
    assert others[1] == pytest.approx(scores, rel=1e-4, abs=1e-6, nan_ok=True)
    baselines = scored.baselines()
    assert baselines
    for values_of in (scores, *baselines.values()):
        assert any(metrics[metric].primary for metric in values_of)
        for metric, value in values_of.items():
            assert metrics[metric].unit in BOUNDS, "add the bounds of this unit"
            low, high = BOUNDS[metrics[metric].unit]
            assert low <= value <= high or (math.isnan(value) and not metrics[metric].primary), (metric, value)
    assert scores.keys() == metrics.keys()
    scored.save_plots(net, DeviceBatches(torch.device("cpu"), limit=7), tmp_path)
    draws = type(scored).save_plots is not Task.save_plots
    has_plots = draws and name.split("_")[0] not in ("listops", "text", "retrieval")
    assert any(path.suffix in (".png", ".txt") for path in tmp_path.iterdir()) == has_plots


@torch.no_grad()
@pytest.mark.parametrize(("task", "name", "backbone"), LOSSES)
def test_a_degenerate_network_is_scored(task, name, backbone, made):
    """Its scores may be NaN, but the evaluation never raises."""
    degenerate = made(task, name)
    degenerate.limit = 3
    net, batches = network(task, degenerate, backbone).eval(), DeviceBatches(torch.device("cpu"), limit=3)
    for value in (0.0, math.nan, math.inf):
        for weights in net.parameters():
            weights.fill_(value)
        assert isinstance(degenerate.validate(net, batches), float)
        scores = degenerate.evaluate(net, batches)
        for metric in degenerate.metrics:
            metric.measured(scores[metric.name])


def repeat_inputs(_: Any, inputs: Any, named: dict[str, Any], output: Any) -> Any:
    """Logits that are certain of the token at their own place: a hook of a network of tokens."""
    logits, *mems = output if isinstance(output, tuple) else [output]
    tokens = [x for x in inputs if x is not None and x.dtype == torch.long][-1].flatten()
    places = named.get("selected")
    own = tokens if places is None else tokens[places]
    repeated = 20.0 * torch.nn.functional.one_hot(own, logits.shape[-1]).view_as(logits)
    return (repeated, *mems) if mems else repeated


@torch.no_grad()
@pytest.mark.parametrize(("task", "name", "backbone"), [c for c in NETWORKS if protocol(c[0], c[2]) in OF_TOKENS])
def test_no_input_is_its_own_answer(task, name, backbone, made):
    """The loss of a network that repeats its inputs is above that of an untrained one."""
    trained = made(task, name)
    net = network(task, trained, backbone).eval()
    losses = []
    for _ in range(2):
        torch.manual_seed(2)
        losses.append(trained.loss(net, trained.training_set.__getitems__([0, 1])).sum().item())
        net.register_forward_hook(repeat_inputs, with_kwargs=True)
    assert losses[1] > losses[0]


@pytest.mark.parametrize(("task", "name", "backbone"), LOSSES)
def test_a_few_steps_lower_the_loss_of_a_batch(task, name, backbone, made):
    trained = made(task, name)
    net = network(task, trained, backbone)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    found = []
    for _ in range(9):
        torch.manual_seed(2)
        loss = trained.loss(net, trained.training_set.__getitems__([0, 1])).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    assert min(found[6:]) < 0.97 * found[0]


ATTENTIONS_OF = {"NS": "lara", "CS": "local", "NC": "performer", "CC": "cosformer"}
CELLS = [
    (task.name, dataset, backbone, str(pattern))
    for task in TASKS
    for dataset in (task.datasets[:1] if task.name == "probe" else task.datasets)  # which share their protocol
    if is_generated(dataset) or task.name == "probe"
    for backbone, patterns in task.backbones.items()
    for pattern in patterns
    if task.has_pattern(dataset, pattern)
]
REAL = {
    "lm": "dataset=pg19 task.vocab_size=2000",
    "sum": "dataset=multi_news",
    "pcc": "dataset=pcn task.list_file=sample.json task.sample_part=train trainer.batch_size=1",
    "sr": "dataset=ffhq task.num_held_out=2 task.diffusion_steps=2 trainer.max_steps=2 trainer.batch_size=1",
    "tts": "dataset=ljspeech task.num_held_out=4",
}
"""Samples of the official files, and what a sample of its size needs."""


def check_run(folder: Path, task: str, backbone: str, pattern: str, *options: str) -> None:
    cell = [f"task={task}", f"backbone={backbone}", f"pattern={pattern}", f"attention={ATTENTIONS_OF[pattern]}"]
    assert main(["run", "-m", *cell, *options, "preset=smoke", "device=cpu", f"results_dir={folder}"]) == 0
    record = the_record(folder)
    assert record["status"] == "finished"
    primary = {metric["name"]: metric["value"] for metric in record["metrics"] if metric["primary"]}
    assert primary
    assert all(map(math.isfinite, primary.values()))
    assert record["baselines"]
    assert all(primary.keys() & scores.keys() for scores in record["baselines"].values())


@pytest.mark.slow
@pytest.mark.parametrize(("task", "dataset", "backbone", "pattern"), CELLS)
def test_it_runs(task, dataset, backbone, pattern, tmp_path):
    check_run(tmp_path, task, backbone, pattern, f"dataset={dataset}")


@pytest.mark.slow
@pytest.mark.parametrize("task", REAL)
def test_samples_of_official_files_run(task, samples, tmp_path):
    backbone, patterns = next(iter(TASKS.get(task).backbones.items()))
    check_run(tmp_path, task, backbone, str(patterns[0]), *REAL[task].split(), f"data_root={samples}")
