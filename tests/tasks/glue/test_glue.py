"""GLUE: rows of tokens, metrics, splits, presets; what of its files is read literally, and what is refused."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cab import Backbone, UserError
from cab.config.compose import compose
from cab.records.pretrained import NOT_COMPARED
from tasks.corpus.facts import NAMES
from tasks.corpus.tokens import BEGIN, END, PAD
from tasks.glue import tables
from tasks.glue.tables import LAYOUTS, Examples, find_files, read_table
from tasks.glue.task import GLUE, Batch, f1, scores_of
from tests.helpers.in_order import in_order
from tests.helpers.tasks.layouts import write_table
from tests.helpers.tasks.records import ready


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> GLUE:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(tables, "SYNTHETIC_COUNTS", {"train": 200, "dev": 50})
        return ready("glue")


class Constant(Backbone):
    """The same logits for every row."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        assert (padding_mask is None and (tokens != PAD).all()) or torch.equal(padding_mask, tokens == PAD)
        return self.logits.expand(len(tokens), -1)


# --- data -----------------------------------------------------------------------------------------------------------


def test_a_row_is_robertas(generated: GLUE) -> None:
    """``<s> a </s></s> b </s>``, and ``<s> a </s>`` of one sentence; PAD at the end."""
    encode = generated.vocabulary.encode
    [pair] = encode([("Kept annalamp", "Listed anna")], 40)
    [single] = encode([("Kept annalamp",)], 40)
    assert pair[0] == single[0] == BEGIN
    assert [i for i, entry in enumerate(pair) if entry == END] == [3, 4, 7]
    assert single.tolist() == pair[:4].tolist()
    batch = generated.splits["train"].__getitems__([0, 1])
    assert (batch.tokens[:, 0] == BEGIN).all()
    assert batch.tokens.shape == (2, 22)
    assert len(generated.vocabulary.encode([("", "")], 40)[0]) == 4


def test_long_rows_lose_the_end_of_their_longer_sentence(generated: GLUE) -> None:
    long, short = "Kept " + " ".join(NAMES), "Listed anna"
    whole = generated.vocabulary.encode([(long, short)], 100)[0]
    cut = generated.vocabulary.encode([(long, short), (short, long), (long, long)], 12)
    assert [len(row) for row in cut] == [12, 12, 12]
    assert cut[0].tolist() == [*whole[:7], END, END, *whole[-3:]]
    assert [i for i, entry in enumerate(cut[2]) if entry == END] == [5, 6, 11]


def test_what_is_held_out_is_not_trained_on(generated: GLUE) -> None:
    sizes = {split: len(rows) for split, rows in generated.splits.items()}
    assert sizes == {"train": 180, "held_out": 20, "dev": 50}
    kept = {tuple(row.tolist()) for row in generated.splits["train"].tokens}
    assert kept.isdisjoint(tuple(row.tolist()) for row in generated.splits["held_out"].tokens)


# --- scores ---------------------------------------------------------------------------------------------------------


def test_metrics_by_hand() -> None:
    """Of eight answers three are right ones, one is a wrong one, and two right ones are missed."""
    guesses, truth = np.array([1, 1, 1, 1, 0, 0, 0, 0]), np.array([1, 1, 1, 0, 1, 1, 0, 0])
    assert scores_of("rte", guesses, truth) == {"accuracy": 5 / 8}
    assert f1(guesses, truth) == pytest.approx(2 * 3 / (4 + 5))
    matthews = (3 * 2 - 1 * 2) / np.sqrt(4 * 5 * 3 * 4)
    assert scores_of("cola", guesses, truth)["matthews"] == pytest.approx(matthews)
    x, y = np.random.default_rng(0).normal(size=(2, 30))
    ranks = x.argsort().argsort(), y.argsort().argsort()
    expected = {"pearson": np.corrcoef(x, y)[0, 1], "spearman": np.corrcoef(*ranks)[0, 1]}
    assert scores_of("stsb", x, y) == pytest.approx(expected)
    always = np.ones(4)
    assert scores_of("stsb", always, np.array([0, 1, 1, 0])) == {"pearson": 0.0, "spearman": 0.0}
    assert f1(np.zeros(4), np.zeros(4)) == 0.0


def test_mnli_has_two_dev_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "glue/MNLI"
    for name in ("original/sts-train.tsv", "dev_ids.tsv", "test_matched.tsv"):  # of official folders
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    write_table(folder, "mnli", *[f"{MNLI}\tneutral"] * 3, f"{MNLI}\tentailment")
    dev = [f"{MNLI}{4 * chr(9)}\t{label}" for label in ("neutral", "contradiction")]
    write_table(folder, "mnli", *dev, file="dev_matched")
    write_table(folder, "mnli", *[dev[0]] * 2, file="dev_mismatched")
    task = ready("glue", tmp_path, dataset="mnli", vocab_size=300, validation_fraction=0.0)
    assert "left out" not in caplog.text
    assert [metric.name for metric in task.metrics] == ["accuracy", "accuracy_mm"]
    assert task.backbone_options("")["num_classes"] == 3
    assert task.evaluate(Constant(0.0, 1.0, 0.0), in_order) == {"accuracy": 0.5, "accuracy_mm": 1.0}
    assert task.baselines() == {"commonest": {"accuracy": 0.5, "accuracy_mm": 1.0}}
    assert task.validate(Constant(0.0, 1.0, 0.0), in_order) == 0.5
    assert task.config_variant == "from scratch, chosen on dev"


def test_scores_are_learned_as_shares_of_the_best(tmp_path: Path) -> None:
    folder = tmp_path / "glue/STS-B"
    folder.mkdir(parents=True)
    for split in ("train", "dev"):
        lines = [f"{i}\tm\tn\t2012\t17\tx\tx\ta\tb\t{score}" for i, score in enumerate((0.0, 2.5, 5.0))]
        write_table(folder, "stsb", *lines, file=split)
    task = ready("glue", tmp_path, dataset="stsb", vocab_size=300, validation_fraction=0.0)
    assert task.backbone_options("")["num_classes"] == 1
    batch = task.splits["train"].__getitems__([0, 1, 2])
    assert task.loss(Constant(0.5), batch).item() == pytest.approx((0.25 + 0.0 + 0.25) / 3)
    assert task.baselines() == {"mean": {"pearson": 0.0, "spearman": 0.0}}


def test_the_loss_is_the_likelihood_of_the_class() -> None:
    batch = Batch(torch.tensor([[BEGIN, 9, END]] * 2), torch.tensor([0.0, 1.0]))
    loss = GLUE(dataset="rte").loss(Constant(0.0, np.log(3.0)), batch)
    assert loss.item() == pytest.approx(-(np.log(0.25) + np.log(0.75)) / 2)


# --- from a run of MLM ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "pretraining", "attention"),
    [
        ("paper", "wikitext103", "transnormer_t1"),
        ("paper", "wikitext103", "vanilla"),
        ("mini", "synthetic", "performer"),
    ],
)
def test_presets_continue_the_pretrainings_networks(preset: str, pretraining: str, attention: str) -> None:
    """No option needs to be repeated by hand; TransNormer's have their own norm, feed-forward map and positions."""
    configs = []
    for task, dataset, backbone in (("mlm", pretraining, "roberta"), ("glue", "rte", "roberta_classifier")):
        cell = {"task": task, "dataset": dataset, "backbone": backbone, "pattern": "NS", "attention": attention}
        configs.append(compose([f"{key}={value}" for key, value in {**cell, "preset": preset}.items()]))
    before, after = configs
    assert after["attention"] == before["attention"]
    for option, value in before["backbone"].items():
        assert option in NOT_COMPARED or after["backbone"][option] == value, option
    if preset == "paper":
        trainer = after["trainer"]
        assert (trainer["batch_size"], trainer["max_epochs"], trainer["warmup_steps"]) == (16, 3, 37)
        assert after["task"]["validation_fraction"] == 0.0
        assert (after["backbone"]["norm"] == "simplerms") == (attention == "transnormer_t1")


MNLI = "\t".join(["7", "p", "q", "fiction", "( a )", "( b )", "(X a)", "(X b)", "a", "b", "neutral"])


def read(folder: Path, dataset: str, *lines: str) -> Examples:
    return read_table(write_table(folder, dataset, *lines), LAYOUTS[dataset])


def test_each_layout(tmp_path: Path) -> None:
    """A line of each data set, as its official file has it."""
    scores = "0\tmain\tnews\t2012\t17\tnone\tnone\ta\tb\t{}"
    for dataset, line, texts, label in (
        ("cola", "gj04\t0\t*\tThey drank the pub.", ("They drank the pub.",), 0),
        ("sst2", "a smile on your face \t1", ("a smile on your face",), 1),
        ("mrpc", "1\t702876\t702977\ta\tb", ("a", "b"), 1),
        ("qqp", "133273\t213221\t213222\ta ?\tb ?\t0", ("a ?", "b ?"), 0),
        ("mnli", f"{MNLI}\tneutral", ("a", "b"), 1),
        ("qnli", "0\tWhen ?\tIn 1990 .\tnot_entailment", ("When ?", "In 1990 ."), 1),
        ("rte", "0\ta\tb\tentailment", ("a", "b"), 0),
        ("stsb", scores.format("4.250"), ("a", "b"), 4.25),
    ):
        assert read(tmp_path, dataset, line) == Examples([texts], [label]), dataset
    dev = write_table(
        tmp_path, "mnli", f"{MNLI}\tneutral\tneutral\tentailment\tneutral\tentailment", file="dev_matched"
    )
    assert read_table(dev, LAYOUTS["mnli"]).labels == [2.0]


def test_quotes_are_letters_and_a_sentence_may_be_empty(tmp_path: Path) -> None:
    lines = ['0\t"a\tb "c" d\tentailment', "1\t'\t\"\tnot_entailment", '2\t"never closed\t\tentailment']
    assert read(tmp_path, "rte", *lines).texts == [('"a', 'b "c" d'), ("'", '"'), ('"never closed', "")]


def test_the_broken_lines_of_qqp_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = read(tmp_path, "qqp", "1\t2\t3\ta\tb\t0", "2\t2\t3\tbroken", "3\t2\t3\tc\td\t1", "4")
    assert found.labels == [0.0, 1.0]
    assert "skipped 2 lines with missing columns, from line 3" in caplog.text


def test_where_files_are_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no train.tsv in glue/CoLA, .*: cab data download cola --data-root"):
        find_files("cola", tmp_path)
    with pytest.raises(UserError, match="needs its files: cab data download cola --data-root FOLDER"):
        find_files("cola", None)
    (tmp_path / "glue_data/MNLI").mkdir(parents=True)
    for file in ("train", "dev_matched"):
        (tmp_path / f"glue_data/MNLI/{file}.tsv").touch()
    with pytest.raises(UserError, match=r"no dev_mismatched.tsv of mnli"):
        find_files("mnli", tmp_path)
