"""GLUE: rows of tokens, metrics, splits, the published preset; what of its files is read literally."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cab import UserError
from cab.cli.main import main
from cab.config.compose import compose
from cab.records.pretrained import NOT_COMPARED
from cab.runner.cell import Cell
from tasks.corpus.facts import USUAL_NAMES
from tasks.corpus.tokens import BEGIN, END, PAD
from tasks.glue.tables import FILE_LAYOUTS, Examples, read_table
from tasks.glue.task import f1, scores_of
from tests.helpers.tasks.layouts import write_rte, write_table
from tests.helpers.tasks.records import in_order, ready


def constant(*logits: float) -> Any:
    def network(tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        assert (padding_mask is None and (tokens != PAD).all()) or torch.equal(padding_mask, tokens == PAD)
        return torch.tensor(logits).expand(len(tokens), -1)

    return network


def test_a_row_is_robertas():
    """``<s> a </s></s> b </s>``, and ``<s> a </s>`` of one sentence; PAD at the end."""
    encode = ready("glue").vocabulary.encode
    [pair] = encode([("Kept annalamp", "Listed anna")], 40)
    [single] = encode([("Kept annalamp",)], 40)
    assert pair[0] == single[0] == BEGIN
    assert [i for i, entry in enumerate(pair) if entry == END] == [3, 4, 7]
    assert single.tolist() == pair[:4].tolist()
    assert len(encode([("", "")], 40)[0]) == 4
    long, short = "Kept " + " ".join(USUAL_NAMES), "Listed anna"  # whose longer sentence loses its end
    [whole], cut = encode([(long, short)], 100), encode([(long, short), (short, long), (long, long)], 12)
    assert [len(row) for row in cut] == [12, 12, 12]
    assert cut[0].tolist() == [*whole[:7], END, END, *whole[-3:]]
    assert [i for i, entry in enumerate(cut[2]) if entry == END] == [5, 6, 11]


def test_what_is_held_out_is_not_trained_on():
    rows = {split: [tuple(row.tolist()) for row in rows.tokens] for split, rows in ready("glue").splits.items()}
    assert {split: len(tokens) for split, tokens in rows.items()} == {"train": 58, "held_out": 6, "dev": 16}
    assert {*rows["train"]}.isdisjoint(rows["held_out"])


SMOKE = ["preset=smoke", "device=cpu", "pattern=NS", "attention=vanilla"]
MNLI = "\t".join(["7", "p", "q", "fiction", "( a )", "( b )", "(X a)", "(X b)", "a", "b", "neutral"])


def read(folder: Path, dataset: str, *lines: str) -> Examples:
    return read_table(write_table(folder, dataset, *lines), FILE_LAYOUTS[dataset])


def test_each_layout(tmp_path):
    for dataset, line, texts, label in (
        ("cola", "gj04\t0\t*\tThey drank the pub.", ("They drank the pub.",), 0),
        ("sst2", "a smile on your face \t1", ("a smile on your face",), 1),
        ("mrpc", "1\t702876\t702977\ta\tb", ("a", "b"), 1),
        ("qqp", "133273\t213221\t213222\ta ?\tb ?\t0", ("a ?", "b ?"), 0),
        ("mnli", f"{MNLI}\tneutral", ("a", "b"), 1),
        ("qnli", "0\tWhen ?\tIn 1990 .\tnot_entailment", ("When ?", "In 1990 ."), 1),
        ("rte", "0\ta\tb\tentailment", ("a", "b"), 0),
        ("stsb", "0\tmain\tnews\t2012\t17\tnone\tnone\ta\tb\t4.250", ("a", "b"), 4.25),
    ):
        assert read(tmp_path, dataset, line) == Examples([texts], [label]), dataset


def test_quotes_are_letters_sentences_may_be_empty_and_broken_lines_of_qqp_are_left_out(tmp_path, caplog):
    lines = ['0\t"a\tb "c" d\tentailment', "1\t'\t\"\tnot_entailment", '2\t"never closed\t\tentailment']
    assert read(tmp_path, "rte", *lines).texts == [('"a', 'b "c" d'), ("'", '"'), ('"never closed', "")]
    assert read(tmp_path, "qqp", "1\t2\t3\ta\tb\t0", "2\t2\t3\tbroken", "3\t2\t3\tc\td\t1", "4").labels == [0.0, 1.0]
    assert "skipped 2 lines with missing columns, from line 3" in caplog.text


def test_metrics_by_hand():
    """Of eight answers three are right ones, one is a wrong one, and two right ones are missed."""
    guesses, truth = np.array([1, 1, 1, 1, 0, 0, 0, 0]), np.array([1, 1, 1, 0, 1, 1, 0, 0])
    assert scores_of("rte", guesses, truth) == {"accuracy": 5 / 8}
    assert f1(guesses, truth) == pytest.approx(2 * 3 / (4 + 5))
    assert scores_of("cola", guesses, truth)["matthews"] == pytest.approx((3 * 2 - 1 * 2) / np.sqrt(4 * 5 * 3 * 4))
    x, y = np.random.default_rng(0).normal(size=(2, 30))
    ranks = x.argsort().argsort(), y.argsort().argsort()
    expected = {"pearson": np.corrcoef(x, y)[0, 1], "spearman": np.corrcoef(*ranks)[0, 1]}
    assert scores_of("stsb", x, y) == pytest.approx(expected)
    assert scores_of("stsb", np.ones(4), np.array([0, 1, 1, 0])) == {"pearson": 0.0, "spearman": 0.0}
    assert f1(np.zeros(4), np.zeros(4)) == 0.0


def test_mnli_has_two_dev_files(tmp_path):
    folder = tmp_path / "glue/MNLI"
    write_table(folder, "mnli", *[f"{MNLI}\tneutral"] * 3, f"{MNLI}\tentailment")
    dev = [f"{MNLI}{4 * chr(9)}\t{label}" for label in ("neutral", "contradiction")]
    write_table(folder, "mnli", *dev, file="dev_matched")
    write_table(folder, "mnli", *[dev[0]] * 2, file="dev_mismatched")
    task = ready("glue", tmp_path, dataset="mnli", vocab_size=300, validation_fraction=0.0)
    assert [metric.name for metric in task.metrics] == ["accuracy", "accuracy_mm"]
    assert task.backbone_options("")["num_classes"] == 3
    assert task.evaluate(constant(0.0, 1.0, 0.0), in_order) == {"accuracy": 0.5, "accuracy_mm": 1.0}
    assert task.baselines() == {"commonest": {"accuracy": 0.5, "accuracy_mm": 1.0}}
    assert task.validate(constant(0.0, 1.0, 0.0), in_order) == 0.5
    batch = task.splits["dev_matched"].__getitems__([0, 1])
    likelihoods = np.log([3 / 5, 1 / 5])  # neutral, contradiction
    assert task.loss(constant(0.0, np.log(3.0), 0.0), batch).item() == pytest.approx(-likelihoods.mean())
    assert task.config_variant == "from scratch, chosen on dev"


def test_scores_are_learned_as_shares_of_the_best(tmp_path):
    lines = [f"{i}\tm\tn\t2012\t17\tx\tx\ta\tb\t{score}" for i, score in enumerate((0.0, 2.5, 5.0))]
    for split in ("train", "dev"):
        write_table(tmp_path / "glue/STS-B", "stsb", *lines, file=split)
    task = ready("glue", tmp_path, dataset="stsb", vocab_size=300, validation_fraction=0.0)
    assert task.backbone_options("")["num_classes"] == 1
    batch = task.splits["train"].__getitems__([0, 1, 2])
    assert task.loss(constant(0.5), batch).item() == pytest.approx((0.25 + 0.0 + 0.25) / 3)
    assert task.baselines() == {"mean": {"pearson": 0.0, "spearman": 0.0}}


def test_preset_paper_continues_the_pretrainings_network():
    """No option needs to be repeated by hand; TransNormer's have their own norm, feed-forward map and positions."""
    chosen = ["preset=paper", "pattern=NS", "attention=transnormer_t1"]
    before = compose(["task=mlm", "dataset=wikitext103", "backbone=roberta", *chosen])["backbone"]
    after = compose(["task=glue", "dataset=rte", "backbone=roberta_classifier", *chosen])
    assert all(after["backbone"][option] == value for option, value in before.items() if option not in NOT_COMPARED)
    assert after["backbone"]["norm"] == "simplerms"
    assert {"batch_size": 16, "max_epochs": 3, "warmup_steps": 37}.items() <= after["trainer"].items()
    assert after["task"]["validation_fraction"] == 0.0


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    assert main(["run", "task=mlm", "dataset=synthetic", *SMOKE, f"results_dir={folder}"]) == 0
    return folder


def hash_of(place: Path, *options: str) -> str:
    cell = compose(["task=glue", "dataset=synthetic", *SMOKE, f"task.pretrained={place}", *options])
    return Cell.from_config(cell).hash


def test_training_starts_from_its_weights_and_its_dictionary(results, tmp_path):
    """Without a step the tables and layers are those of the run; RTE's other words are split into letters."""
    [pretrained] = results.glob("*.json")
    arguments = ["run", "task=glue", "dataset=rte", *SMOKE, f"task.pretrained={results}", "trainer.max_steps=0"]
    assert main([*arguments, f"data_root={write_rte(tmp_path)}", f"results_dir={tmp_path / 'own'}"]) == 0
    [path] = (tmp_path / "own").glob("*.json")
    record = json.loads(path.read_text())
    assert record["cell"]["config_variant"] == "pretrained on synthetic for 8 steps"
    assert record["data"]["examples"] == {"train": 14, "dev": 16, "held_out": 2}
    given = torch.load(results / pretrained.stem / "weights.pt", weights_only=True)
    own = torch.load(path.with_suffix("") / "weights.pt", weights_only=True)
    shared = own.keys() & given.keys()
    assert shared == {name for name in own if not name.startswith("classifier.")}
    assert all(torch.equal(own[name], given[name]) for name in shared)
    head = {f"{module}.{kind}" for module in ("head", "head_norm") for kind in ("weight", "bias")}
    assert given.keys() - shared == {"output_bias", *head}
    data = json.loads(pretrained.read_text())["data"]
    assert record["data"]["dictionary"]["pretraining"] == {name: data[name] for name in ("books", "tokens")}


def test_a_cell_is_of_the_weights_that_it_starts_from(results, tmp_path):
    other = shutil.copytree(results, tmp_path / "other")
    [record] = other.glob("*.json")
    weights = record.with_suffix("") / "weights.pt"
    usual = hash_of(record)
    weights.write_bytes(weights.read_bytes() + b"\0")
    assert hash_of(record) != usual
    weights.unlink()
    with pytest.raises(UserError, match="has no weights at"):
        hash_of(record)
    shutil.copy(record, other / "again.json")
    with pytest.raises(UserError, match="more than one run of task=mlm backbone=roberta"):
        hash_of(other)


def test_another_network_is_refused(results):
    missing = "has no finished run of task=mlm backbone=roberta attention=vanilla pattern=NS seed=2"
    with pytest.raises(UserError, match=missing):
        hash_of(results, "seed=2")
    with pytest.raises(UserError, match=r"add backbone.num_heads=4 backbone.activation=gelu"):
        hash_of(results, "backbone.activation=relu", "backbone.num_heads=2")
