"""GLUE: rows of tokens, metrics, parts, and fine-tuning from a run of MLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from torch import Tensor

from cab import Backbone, UserError, build_backbone
from cab.cli.main import main
from cab.config import register_configs, resolve
from cab.config_folders import CONFIGS
from cab.pretrained import WHILE_LEARNING
from tasks.corpus.synthetic import NAMES
from tasks.corpus.tokens import BEGIN, END, PAD
from tasks.glue import synthetic
from tasks.glue.scores import f1, pearson, scores_of, spearman
from tasks.glue.task import GLUE, Batch
from tests.cab.cli.command import cab
from tests.tasks.glue.test_tables import MNLI, table
from tests.tasks.in_order import in_order

SMOKE = ["preset=smoke", "device=cpu", "pattern=NS", "attention=vanilla"]


def ready(dataset: str = "synthetic", folder: Path | None = None, **options: Any) -> GLUE:
    task = GLUE(**{"dataset": dataset, "vocab_size": 300, "max_length": 40, "evaluation_batch_size": 7, **options})
    task.check()
    task.setup(folder)
    return task


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> GLUE:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(synthetic, "COUNTS", {"train": 200, "dev": 50})
        return ready(vocab_size=800)


def rte(folder: Path, lines: list[str]) -> Path:
    (folder / "glue/RTE").mkdir(parents=True)
    for part in ("train", "dev"):
        table(folder / "glue/RTE", "rte", *lines, file=part)
    return folder


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
    batch = generated.training_set.__getitems__([0, 1])
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


def test_generated_pairs_list_the_same_names_or_the_others() -> None:
    examples = synthetic.generate_pairs("dev")
    assert examples == synthetic.generate_pairs("dev")
    assert sum(examples.labels) == len(examples) / 2
    for (facts, listed), label in zip(examples.texts, examples.labels, strict=True):
        names = listed.split()[1:]
        told = [name for name in NAMES if any(fact.startswith(name) for fact in facts.split()[1:])]
        assert len(names) == len(told) == 8
        assert (set(names) == set(told)) == bool(label)
        assert set(names).isdisjoint(told) != bool(label)


def test_what_is_held_out_is_not_trained_on(generated: GLUE) -> None:
    sizes = {part: len(rows) for part, rows in generated.parts.items()}
    assert sizes == {"train": 180, "held_out": 20, "dev": 50}
    kept = {tuple(row.tolist()) for row in generated.parts["train"].tokens}
    assert kept.isdisjoint(tuple(row.tolist()) for row in generated.parts["held_out"].tokens)


# --- scores ---------------------------------------------------------------------------------------------------------


def test_metrics_against_scikit_learn() -> None:
    from scipy import stats

    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    for _ in range(5):
        guesses, truth = rng.integers(0, 2, (2, 50))
        assert f1(guesses, truth) == pytest.approx(metrics.f1_score(truth, guesses))
        assert scores_of("cola", guesses, truth)["matthews"] == pytest.approx(metrics.matthews_corrcoef(truth, guesses))
        assert scores_of("rte", guesses, truth)["accuracy"] == pytest.approx(metrics.accuracy_score(truth, guesses))
        x, y = rng.normal(size=(2, 30))
        assert scores_of("stsb", x, y) == {
            "pearson": pytest.approx(np.corrcoef(x, y)[0, 1]),
            "spearman": pytest.approx(stats.kendalltau(x, y)[0], abs=0.2),
        }


def test_answers_that_do_not_vary_have_no_correlation() -> None:
    always, truth = np.ones(4), np.array([0, 1, 1, 0])
    assert pearson(always, truth) == spearman(always, truth) == 0.0
    assert f1(np.zeros(4), np.zeros(4)) == 0.0
    assert f1(always, truth) == pytest.approx(2 / 3)


def test_mnli_has_two_dev_files(tmp_path: Path) -> None:
    folder = tmp_path / "glue/MNLI"
    folder.mkdir(parents=True)
    table(folder, "mnli", *[f"{MNLI}\tneutral"] * 3, f"{MNLI}\tentailment")
    dev = [f"{MNLI}{4 * chr(9)}\t{label}" for label in ("neutral", "contradiction")]
    table(folder, "mnli", *dev, file="dev_matched")
    table(folder, "mnli", *[dev[0]] * 2, file="dev_mismatched")
    task = ready("mnli", tmp_path, held_out=0.0)
    assert [metric.name for metric in task.metrics] == ["accuracy", "accuracy_mm"]
    assert task.backbone_options("")["num_classes"] == 3
    assert task.evaluate(Constant(0.0, 1.0, 0.0), in_order) == {"accuracy": 0.5, "accuracy_mm": 1.0}
    assert task.baselines() == {"commonest": {"accuracy": 0.5, "accuracy_mm": 1.0}}
    assert task.validate(Constant(0.0, 1.0, 0.0), in_order) == 0.5
    assert task.variant == "from scratch, chosen on dev"


def test_scores_are_learnt_as_shares_of_the_best(tmp_path: Path) -> None:
    folder = tmp_path / "glue/STS-B"
    folder.mkdir(parents=True)
    for part in ("train", "dev"):
        lines = [f"{i}\tm\tn\t2012\t17\tx\tx\ta\tb\t{score}" for i, score in enumerate((0.0, 2.5, 5.0))]
        table(folder, "stsb", *lines, file=part)
    task = ready("stsb", tmp_path, held_out=0.0)
    assert task.backbone_options("")["num_classes"] == 1
    batch = task.training_set.__getitems__([0, 1, 2])
    assert task.loss(Constant(0.5), batch).item() == pytest.approx((0.25 + 0.0 + 0.25) / 3)
    assert task.baselines() == {"mean": {"pearson": 0.0, "spearman": 0.0}}


def test_the_loss_is_the_likelihood_of_the_class() -> None:
    batch = Batch(torch.tensor([[BEGIN, 9, END]] * 2), torch.tensor([0.0, 1.0]))
    loss = GLUE(dataset="rte").loss(Constant(0.0, np.log(3.0)), batch)
    assert loss.item() == pytest.approx(-(np.log(0.25) + np.log(0.75)) / 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_out": 1.0}, "held_out"),
        ({"max_length": 4}, "max_length"),
        ({"evaluation_batch_size": 0}, "evaluation_batch_size"),
        ({"pretrained": "a", "tokenizer": "b"}, "task.tokenizer is of fresh weights"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ready(**options)


# --- from a run of MLM ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of ``mlm`` in preset smoke."""
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAB_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        assert main(["run", "task=mlm", "dataset=synthetic", *SMOKE, f"results_dir={folder}"]) == 0
    return folder


def fine_tune(place: Path, folder: Path, *options: str) -> int:
    cell = ["run", "task=glue", *(() if "dataset=rte" in options else ("dataset=synthetic",)), *SMOKE]
    return main([*cell, f"task.pretrained={place}", f"results_dir={folder}", *options])


@pytest.fixture
def _few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "COUNTS", {"train": 64, "dev": 16})


@pytest.mark.usefixtures("_few_pairs")
def test_training_starts_from_its_weights_and_its_dictionary(results: Path, tmp_path: Path) -> None:
    """Without a step the tables and layers are those of the run; another seed is another head."""
    [pretrained] = results.glob("*.json")
    assert fine_tune(results, tmp_path, "trainer.max_steps=0") == 0
    [path] = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    assert record["cell"]["variant"] == "pretrained on synthetic for 8 steps"
    given = torch.load(results / pretrained.stem / "weights.pt", weights_only=True)
    own = torch.load(tmp_path / record["hash"] / "weights.pt", weights_only=True)
    shared = own.keys() & given.keys()
    assert shared == {name for name in own if not name.startswith("classifier.")}
    for name in shared:
        torch.testing.assert_close(own[name], given[name], atol=0, rtol=0)
    assert given.keys() - shared == {
        "output_bias",
        *(f"{m}.{p}" for m in ("head", "head_norm") for p in ("weight", "bias")),
    }
    assert record["data"]["dictionary"]["pretraining"] == {
        key: value for key, value in json.loads(pretrained.read_text())["data"].items() if key in ("books", "tokens")
    }


@pytest.mark.usefixtures("_few_pairs")
def test_a_cell_is_of_the_weights_that_it_starts_from(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same again is found; a run that was pretrained longer is another cell, and two of them must be told apart."""
    longer = tmp_path / "pretrained"
    assert main(["run", "task=mlm", "dataset=synthetic", *SMOKE, "trainer.max_steps=1", f"results_dir={longer}"]) == 0
    [other] = longer.glob("*.json")
    for _ in range(2):
        assert fine_tune(results, tmp_path / "own", "trainer.max_steps=1") == 0
    assert len(list((tmp_path / "own").glob("*.json"))) == 1
    for folder in (results / next(results.glob("*.json")).name, other):
        assert fine_tune(folder, tmp_path / "own", "trainer.max_steps=1") == 0
    assert len(list((tmp_path / "own").glob("*.json"))) == 3
    (longer / next(results.glob("*.json")).name).write_text(next(results.glob("*.json")).read_text())
    assert fine_tune(longer, tmp_path / "own") == 2
    assert "more than one run of task=mlm attention=vanilla pattern=NS seed=1: name one of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["seed=2"], "has no finished run of task=mlm attention=vanilla pattern=NS seed=2"),
        (["attention=abc"], "has no finished run of task=mlm attention=abc"),
        (["backbone.embed_dim=64"], "was trained with other options: add backbone.embed_dim=32"),
        (["backbone.activation=relu", "backbone.num_heads=2"], "add backbone.num_heads=4 backbone.activation=gelu"),
    ],
)
@pytest.mark.usefixtures("_few_pairs")
def test_another_network_is_refused_in_one_line(
    options: list[str], message: str, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "task=glue", "dataset=synthetic", *SMOKE[:3], f"task.pretrained={results}"]
    attention = [] if any(each.startswith("attention=") for each in options) else ["attention=vanilla"]
    assert main([*arguments, *attention, *options, f"results_dir={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


def test_a_record_that_is_none_or_has_no_weights(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = next(results.glob("*.json"))
    alone = tmp_path / record.name
    alone.write_text(record.read_text())
    assert fine_tune(alone, tmp_path / "own") == 2
    assert "has no weights at" in capsys.readouterr().err
    assert fine_tune(tmp_path / "nothing.json", tmp_path / "own") == 2
    assert "there is nothing at" in capsys.readouterr().err
    torch.save({}, tmp_path / "weights.pt")
    alone.with_suffix("").mkdir()
    (tmp_path / "weights.pt").rename(alone.with_suffix("") / "weights.pt")
    assert fine_tune(alone, tmp_path / "own") == 2
    assert "do not fit: embedding.tokens.weight is not there, and this network needs [" in capsys.readouterr().err


@pytest.mark.usefixtures("_few_pairs")
def test_a_sweep_finds_the_run_of_each_attention_and_seed(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one that is not there is named, and the others run."""
    sweep = [
        "run",
        "-m",
        "task=glue",
        "dataset=synthetic",
        "preset=smoke",
        "device=cpu",
        "attention=vanilla",
        "seed=1,2",
    ]
    assert main([*sweep, f"task.pretrained={results}", f"results_dir={tmp_path}", "trainer.max_steps=1"]) != 0
    assert "has no finished run of task=mlm attention=vanilla pattern=NS seed=2" in capsys.readouterr().err
    assert len(list(tmp_path.glob("*.json"))) == 1


@pytest.mark.thorough
def test_a_run_that_is_killed_goes_on_to_the_same_weights(results: Path, tmp_path: Path) -> None:
    """Not from the pretrained weights again; the head was drawn once."""
    cell = ["task=glue", "dataset=rte", *SMOKE, f"task.pretrained={results}", "trainer.checkpoint_every=2"]
    lines = [f"{i}\tanna keeps a lamp\tanna\t{label}" for i, label in enumerate(["entailment", "not_entailment"] * 9)]
    cell += [f"data_root={rte(tmp_path, lines)}"]
    found = []
    for name in ("whole", "cut"):
        arguments = ["run", *cell, f"results_dir={tmp_path / name}"]
        if name == "cut":
            killed = cab(*arguments, cwd=tmp_path, stop=f"kill step-00000006.ckpt {tmp_path / 'killed'}")
            assert killed.returncode == -9
        process = cab(*arguments, cwd=tmp_path)
        assert process.returncode == 0, process.stderr
        assert ("resuming from step 4" in process.stderr) == (name == "cut")
        [path] = (tmp_path / name).glob("*.json")
        found.append(torch.load(path.with_suffix("") / "weights.pt", weights_only=True))
    for name, weight in found[0].items():
        torch.testing.assert_close(found[1][name], weight, atol=0, rtol=0)


def test_an_official_layout_is_fine_tuned(results: Path, tmp_path: Path) -> None:
    """RTE's files with the dictionary of the pretraining, which splits other words into their letters."""
    lines = [
        f'{i}\tanna "keeps" a lamp .\tit is {word} .\t{label}'
        for i, (word, label) in enumerate([("hers", "entailment"), ("lost", "not_entailment")] * 8)
    ]
    folder = rte(tmp_path, lines)
    assert fine_tune(results, tmp_path / "own", "dataset=rte", f"data_root={folder}", "trainer.max_steps=2") == 0
    [path] = (tmp_path / "own").glob("*.json")
    record = json.loads(path.read_text())
    assert record["data"]["examples"] == {"train": 14, "dev": 16, "held_out": 2}
    assert record["baselines"] == {"commonest": {"accuracy": 0.5}}
    assert '\tanna "keeps" a lamp .' in (tmp_path / "own" / record["hash"] / "answers.txt").read_text()


@pytest.mark.parametrize("attention", ["vanilla", "performer", "transnormer_t1"])
@pytest.mark.parametrize(("preset", "pretraining"), [("paper", "wikitext103"), ("mini", "synthetic")])
def test_presets_continue_the_pretrainings_networks(preset: str, pretraining: str, attention: str) -> None:
    """No option needs to be repeated by hand; TransNormer's have their own norm, feed-forward map and positions."""
    configs = []
    register_configs()
    for task, dataset, backbone in (("mlm", pretraining, "roberta"), ("glue", "rte", "roberta_classifier")):
        cell = {"task": task, "dataset": dataset, "backbone": backbone, "pattern": "NS", "attention": attention}
        with initialize_config_dir(config_dir=str(CONFIGS), version_base="1.3"):
            overrides = [f"{key}={value}" for key, value in {**cell, "preset": preset}.items()]
            configs.append(resolve(compose("run", overrides=overrides)))
    before, after = configs
    assert after["attention"] == before["attention"]
    decided = (*WHILE_LEARNING, "vocab_size", "max_length")
    for option, value in before["backbone"].items():
        assert option in decided or after["backbone"][option] == value, option
    if preset == "paper":
        trainer = after["trainer"]
        assert (trainer["batch_size"], trainer["max_epochs"], trainer["warmup_steps"]) == (16, 3, 37)
        assert after["task"]["held_out"] == 0.0
        assert (after["backbone"]["norm"] == "simplerms") == (attention == "transnormer_t1")


def test_gradients_reach_all_of_a_classifier() -> None:
    backbone = build_backbone(
        "roberta_classifier",
        attention="vanilla",
        pattern="NS",
        vocab_size=20,
        max_length=8,
        embed_dim=16,
        num_heads=2,
        ffn_dim=32,
        num_layers=1,
        num_classes=3,
    )
    tokens = torch.tensor([[BEGIN, 5, 6, END], [BEGIN, 7, END, PAD]])
    logits = backbone(tokens, tokens == PAD)
    assert logits.shape == (2, 3)
    logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in backbone.parameters())
    torch.testing.assert_close(backbone.eval()(tokens, tokens == PAD)[1:], backbone(tokens[1:, :3]))
