"""Options of tasks that contradict the data or each other are refused in one line; presets have all data sets."""

from __future__ import annotations

from typing import Any

import pytest

from cab import UserError
from cab.config.compose import compose
from cab.registry.registries import TASKS
from cab.registry.tables import read_table
from cab.runner.cell import Cell

REFUSED: list[tuple[str, dict[str, Any], str]] = [  # the first and pred_len for all limits that types state
    ("lm", {"loss_on": "some"}, r"task\.loss_on: Input should be 'all' or 'answers'"),
    ("lm", {"block_len": 16, "overlap": 16}, r"task\.overlap must be from 0 to below task\.block_len 16"),
    ("mlm", {"mask_share": 0.0}, "task.mask_share must be above 0"),
    ("glue", {"validation_fraction": 1.0}, "task.validation_fraction must be from 0 to below 1"),
    ("glue", {"max_length": 4}, "task.max_length must be at least 8"),
    ("glue", {"pretrained": "a", "tokenizer": "b"}, "task.tokenizer is for fresh weights"),
    ("sum", {"target_len": 1}, "task.target_len must be at least 2"),
    ("sum", {"min_length": 9, "max_length": 7}, "min_length"),
    ("lstf", {"pred_len": 0}, "task.pred_len: Input should be greater than or equal to 1"),
    ("lstf", {"seq_len": 41, "label_len": 42}, "task.label_len 42 must not exceed task.seq_len 41"),
    ("sr", {"low_resolution": 8, "high_resolution": 20}, "task.high_resolution must be a multiple"),
    ("sr", {"num_held_out": 2}, "task.num_held_out applies to ffhq"),
    ("tts", {"num_prompt_steps": 3, "max_steps": 3}, "task.num_prompt_steps must be less than max_steps=3"),
    ("tts", {"generated": 50}, "task.generated must be at least 96"),
    ("tts", {"num_held_out": 2}, "task.num_held_out applies to ljspeech"),
    ("probe", {"dataset": "recall", "pairs": 20}, "raise task.vocab_size to 20"),
    ("probe", {"dataset": "copying", "noise": 0.2}, "task.noise applies to noisy and mad_noisy"),
    ("probe", {"dataset": "noisy", "noise": 1.0}, "from 0 to below 1"),
    ("probe", {"dataset": "mqar", "vocab_size": 64, "length": 32}, "task.length must be at least 64"),
    ("probe", {"dataset": "mqar"}, "task.vocab_size must be at least 34"),
    ("probe", {"dataset": "mad_noisy"}, "task.vocab_size must be at least 20"),
    ("probe", {"dataset": "mad_recall", "length": 33}, "must be even"),
    ("probe", {"dataset": "mad_copying", "length": 32}, "task.length must be at least 34"),
    ("lra", {"dataset": "listops_synthetic", "max_arguments": 1}, "task.max_arguments must be at least 2"),
    ("lra", {"dataset": "listops_synthetic", "length": 40, "min_length": 39}, "no tree is longer than 39 and shorter"),
    ("lra", {"dataset": "text_synthetic", "length": 40}, "length of a generated text must be at least 64, got 40"),
    ("lra", {"dataset": "pathx_synthetic", "side": 32}, "contours need task.side of at least 64, got 32"),
    ("lra", {"dataset": "image_synthetic", "brackets": "dropped"}, "task.brackets applies to listops, not to image"),
    ("lra", {"dataset": "listops", "zero_pixel_is_padding": True}, "task.zero_pixel_is_padding applies to image"),
]


@pytest.mark.parametrize(("task", "options", "message"), REFUSED)
def test_options_are_refused(task: str, options: dict[str, Any], message: str) -> None:
    entry, given = TASKS.get(task), {**options}
    dataset = given.pop("dataset", "synthetic")
    with pytest.raises(UserError, match=message) as error:
        entry.cls(dataset=dataset, **entry.check_options(given, "task")).check()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("preset", ["paper", "mini"])
@pytest.mark.parametrize(("task", "pattern", "schedule"), [("lra", "NS", "linear"), ("probe", "CS", "cosine")])
def test_every_preset_has_a_row_for_every_data_set(task: str, pattern: str, schedule: str, preset: str) -> None:
    datasets = TASKS.get(task).datasets
    assert {row["dataset"] for row in read_table(task) if row["preset"] == preset} == {*datasets}
    for dataset in (datasets[0], datasets[-1]):
        choice = {"task": task, "dataset": dataset, "pattern": pattern, "attention": "vanilla", "preset": preset}
        cell = Cell.from_config(compose([*(f"{key}={value}" for key, value in choice.items()), "device=cpu"]))
        cell.task.check()
        assert cell.config.trainer.schedule == schedule
