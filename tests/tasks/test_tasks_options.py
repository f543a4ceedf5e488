"""Options of tasks that contradict the data or each other are refused by their name."""

from __future__ import annotations

import pytest
import yaml

from cab import UserError
from cab.registry.registries import TASKS

REFUSED = {
    "lm": ["loss_on=some", "block_len=16 overlap=16"],
    "lm_recurrent": ["overlap=8"],
    "mlm": ["mask_share=0.0"],
    "glue": ["validation_fraction=1.0", "max_length=4", "tokenizer=b pretrained=a"],
    "sum": ["target_len=1", "min_length=9 max_length=7"],
    "lstf": ["pred_len=0", "label_len=42 seq_len=41"],
    "sr": ["high_resolution=20 low_resolution=8", "num_held_out=2"],
    "tts": ["num_prompt_steps=3 max_steps=3", "generated=50", "num_held_out=2"],
    "probe": [
        *("vocab_size=15 pairs=16 dataset=recall", "noise=0.2 dataset=copying", "noise=1.0 dataset=noisy"),
        *("length=32 vocab_size=64 dataset=mqar", "vocab_size=33 dataset=mqar", "length=33 dataset=mad_recall"),
    ],
    "lra": [
        *("max_arguments=1 dataset=listops_synthetic", "length=40 min_length=39 dataset=listops_synthetic"),
        *("length=40 dataset=text_synthetic", "side=32 dataset=pathx_synthetic", "side=16 dataset=pathfinder"),
        *("brackets=dropped dataset=image", "zero_pixel_is_padding=true dataset=listops"),
    ],
}


@pytest.mark.parametrize(("task", "options"), [(task, each) for task, rows in REFUSED.items() for each in rows])
def test_options_are_refused_by_their_name(task: str, options: str) -> None:
    entry, given = TASKS.get(task), dict(option.split("=") for option in options.split())
    dataset = given.pop("dataset", "synthetic")
    given = {name: yaml.safe_load(value) for name, value in given.items()}
    with pytest.raises(UserError, match=rf"\b{next(iter(given))}\b") as error:
        entry.cls(dataset=dataset, **entry.check_options(given, "task")).check()
    assert "\n" not in str(error.value)
