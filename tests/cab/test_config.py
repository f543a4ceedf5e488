"""Preset `paper` composes to the tables; overrides win; options follow Table 5."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir

from cab.config import check_overrides, read_rows, read_table, register_configs, resolve, tuned_options
from cab.config_sources import CONFIGS
from cab.registry import ATTENTIONS, TASKS


def composed(*overrides: str) -> dict[str, Any]:
    register_configs()
    arguments = check_overrides(["task=lstf", "attention=abc", "pattern=NC", *overrides])
    with initialize_config_dir(config_dir=str(CONFIGS), version_base="1.3"):
        return resolve(compose("run", overrides=arguments))


@pytest.mark.parametrize("row", read_table("lstf"), ids=lambda row: f"{row['dataset']}-{row['features']}")
def test_paper_windows_and_layers(row: dict[str, str]) -> None:
    config = composed("preset=paper", f"dataset={row['dataset']}", f"task.features={row['features']}")
    for name in ("seq_len", "label_len", "pred_len"):
        assert config["task"][name] == int(row[name])
    for name in ("encoder_layers", "decoder_layers"):
        assert config["backbone"][name] == int(row[name])


def test_paper_training_is_table_4() -> None:
    config = composed("preset=paper", "dataset=etth1")
    [row] = [row for row in read_table("table4") if row["task"] == "lstf"]
    trainer = config["trainer"]
    assert trainer["batch_size"] == int(row["batch_size"]) == 32
    assert trainer["max_epochs"] == int(row["epochs"]) == 6
    assert trainer["learning_rate"] == float(row["learning_rate"]) == 1e-4
    assert trainer["betas"] == [float(row["beta1"]), float(row["beta2"])]
    assert trainer["weight_decay"] == trainer["clip_norm"] == 0.0
    assert config["backbone"]["dropout"] == float(row["attention_dropout"])
    assert config["backbone"]["normalization"] == "none"
    assert config["task"]["test_windows"] == "whole_batches"
    assert config["elsewhere"]["NS"] == "probsparse"
    assert config["elsewhere"]["CS"] == {"name": "probsparse", "mix": True}


@pytest.mark.parametrize("dataset", TASKS.get("lstf").datasets)
@pytest.mark.parametrize("features", ["M", "S"])
def test_every_data_set_has_its_row_and_the_whole_recipe(dataset: str, features: str) -> None:
    config = composed("preset=paper", f"dataset={dataset}", f"task.features={features}")
    assert config["preset"] == "paper"
    assert config["dataset"]["name"] == dataset
    assert config["task"]["evaluation_batch_size"] == config["trainer"]["batch_size"] == 32
    assert config["trainer"]["schedule"] == "exponential"
    assert (config["trainer"]["decay"], config["trainer"]["decay_epochs"], config["trainer"]["floor"]) == (0.5, 1, 0)
    assert config["trainer"]["patience"] == 3
    assert config["trainer"]["max_steps"] is None
    widths = {name: config["backbone"][name] for name in ("embed_dim", "num_heads", "ffn_dim", "dropout")}
    assert widths == {"embed_dim": 512, "num_heads": 8, "ffn_dim": 2048, "dropout": 0.05}
    assert config["elsewhere"] == {
        "NS": "probsparse",
        "CS": {"name": "probsparse", "mix": True},
        "NC": "vanilla",
        "CC": "vanilla",
    }


def test_table_1_and_the_windows_agree() -> None:
    """By hand from Table 1: ETT (ETTh1), Weather and ECL, multivariate."""
    windows = {row["dataset"]: row for row in read_table("lstf") if row["features"] == "M"}
    for dataset, lengths in {"etth1": (336, 720), "weather": (720, 720), "ecl": (336, 960)}.items():
        assert (int(windows[dataset]["seq_len"]), int(windows[dataset]["pred_len"])) == lengths


@pytest.mark.parametrize(
    ("attention", "option"), [("abc", {"num_landmarks": 16}), ("performer", {"num_features": 16}), ("cosformer", {})]
)
def test_options_of_table_5(attention: str, option: dict[str, int]) -> None:
    config = composed("preset=paper", "dataset=etth1", f"attention={attention}", "pattern=NC")
    assert config["attention"] == {**ATTENTIONS.get(attention).options, **option, "name": attention}


def test_table_5_speaks_of_one_cell_only() -> None:
    for row in read_table("table5"):
        told = tuned_options(row["task"], row["backbone"], row["pattern"], row["attention"])
        assert told[row["option"]] == yaml.safe_load(row["value"])
    assert tuned_options("pcc", "pointr", "NC", "abc")["num_landmarks"] == 64
    assert tuned_options("lstf", "informer", "NC", "abc")["num_landmarks"] == 16
    assert tuned_options("sum", "transformer", "CS", "abc")["num_landmarks"] == 64


def test_preset_mini_has_options_for_its_lengths() -> None:
    for row in read_rows("suite/options.csv"):
        entry = ATTENTIONS.get(row["attention"])
        assert row["option"] in entry.options, row
        assert row["pattern"] in ("", *entry.patterns), row
        assert row["task"] in ("", *TASKS.names()), row
        assert row["note"] or row["published"], row
    config = composed("preset=mini", "dataset=synthetic")
    assert config["attention"]["num_landmarks"] == 4
    assert composed("preset=mini", "dataset=synthetic", "attention=performer")["attention"]["num_features"] == 4
    assert composed("preset=smoke", "dataset=synthetic")["attention"]["num_landmarks"] == 16


def test_the_command_line_wins() -> None:
    config = composed(
        "preset=paper",
        "dataset=weather",
        *("task.seq_len=99", "task.label_len=33", "task.pred_len=17", "task.test_windows=all"),
        *("backbone.encoder_layers=1", "backbone.dropout=0.5", "attention.num_landmarks=7"),
        *("trainer.learning_rate=0.02", "trainer.max_epochs=1", "elsewhere=vanilla"),
    )
    task = config["task"]
    assert (task["seq_len"], task["label_len"], task["pred_len"], task["test_windows"]) == (99, 33, 17, "all")
    assert (config["backbone"]["encoder_layers"], config["backbone"]["decoder_layers"]) == (1, 2)
    assert config["backbone"]["dropout"] == 0.5
    assert config["attention"] == {"name": "abc", "num_landmarks": 7}
    assert (config["trainer"]["learning_rate"], config["trainer"]["max_epochs"]) == (0.02, 1)
    assert config["trainer"]["batch_size"] == 32
    assert config["elsewhere"] == "vanilla"


def test_presets_are_three_and_differ() -> None:
    sizes = {preset: composed(f"preset={preset}", "dataset=etth1")["backbone"]["embed_dim"] for preset in PRESETS}
    assert sizes == {"paper": 512, "mini": 64, "smoke": 32}


PRESETS = ("paper", "mini", "smoke")
