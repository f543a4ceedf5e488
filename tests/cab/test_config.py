"""Preset `paper` composes to the tables; overrides win; options follow Table 5."""

from __future__ import annotations

from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from cab.config import CONFIGS, check_overrides, read_table, register_configs, resolve


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


def test_options_are_table_5_then_defaults_and_the_command_line_wins() -> None:
    assert composed("preset=paper", "dataset=etth1")["attention"] == {"name": "abc", "num_landmarks": 16}
    assert composed("dataset=etth1", "attention.num_landmarks=7")["attention"]["num_landmarks"] == 7


def test_presets_are_three_and_differ() -> None:
    sizes = {preset: composed(f"preset={preset}", "dataset=etth1")["backbone"]["embed_dim"] for preset in PRESETS}
    assert sizes == {"paper": 512, "mini": 64, "smoke": 32}


PRESETS = ("paper", "mini", "smoke")
