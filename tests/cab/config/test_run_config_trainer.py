"""Schedules against their definitions; settings that contradict each other."""

import math
from typing import Any

import pytest
from omegaconf import OmegaConf

from cab import UserError
from cab.config.run_config import TrainerConfig
from cab.registry.tables import CONFIGS


def config(**changes: Any) -> TrainerConfig:
    values = OmegaConf.to_container(OmegaConf.load(CONFIGS / "trainer" / "default.yaml"))
    return TrainerConfig.parse({str(k): v for k, v in {**values, "max_steps": 100, **changes}.items()})


@pytest.mark.parametrize(
    ("changes", "epoch", "rates"),
    [
        ({"schedule": "linear", "warmup_steps": 10}, 7, {0: 0.1, 9: 1.0, 55: 0.5, 100: 0.0}),
        ({"schedule": "cosine", "warmup_steps": 20}, 7, {9: 0.5, 20: 1.0, 60: 0.5, 100: 0.0}),
        ({"schedule": "inverse_sqrt", "warmup_steps": 16}, 7, {15: 1.0, 64: 0.5}),
        ({"schedule": "exponential"}, 7, {0: 1.0, 6: 1.0, 7: 0.5, 13: 0.5, 14: 0.25}),
        # Informer2020, main_informer's exp/exp_informer.py and utils/tools.py: 0.5 ** (epoch - 1), from epoch 1 on
        ({"schedule": "late_exponential"}, 7, {0: 1.0, 7: 1.0, 14: 0.5, 21: 0.25, 28: 0.125}),
        (
            {"schedule": "exponential", "lr_decay": 0.9, "lr_decay_epochs": 21, "lr_min": 0.02},
            10,
            {9: 1.0, 215: 0.9, 10**6: 0.02},
        ),
    ],
    ids=lambda value: value.get("schedule", "") if isinstance(value, dict) else str(value),
)
def test_schedules_follow_their_definitions(changes, epoch, rates):
    rate = config(**changes).rate(epoch)
    assert {step: rate(step) for step in rates} == pytest.approx(rates)


@pytest.mark.parametrize("name", TrainerConfig.examples())
def test_an_invalid_value_is_refused_with_an_example_that_is_valid(name):
    with pytest.raises(UserError, match=rf"for example trainer\.{name}=.+") as refusal:
        config(**{name: object()})
    example = OmegaConf.create(f"value: {str(refusal.value).rpartition(f'trainer.{name}=')[2]}").value
    config(**{name: example}, **({"max_steps": None} if name == "max_epochs" else {}))


def test_epochs_become_steps():
    assert config(max_steps=None, max_epochs=6).num_steps(7) == 42


WRONG = [
    *(("optimizer", "sgd"), ("schedule", "step"), ("checkpoint_selection", "worst"), ("validate_every", "day")),
    *(("batch_size", 0), ("micro_batch_size", 2.0), ("max_steps", -1), ("patience", 0), ("warmup_steps", None)),
    *(("num_workers", -1), ("learning_rate", -1.0), ("max_grad_norm", math.nan), ("lr_decay_epochs", 0)),
    *(("betas", [0.9]), ("betas", [0.9, 1.0]), ("average_count", 0), ("precision", 16)),
]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_epochs": 3}, "exactly one"),
        ({"max_steps": None}, "exactly one"),
        ({"validate_every": None}, "need validations"),
        ({"validate_every": None, "checkpoint_selection": "last", "stop_at": 1.0}, "need validations"),
        *(({name: value}, f"trainer.{name}: ") for name, value in WRONG),
    ],
    ids=str,
)
def test_contradictions_and_wrong_types_are_refused(changes, named):
    with pytest.raises(UserError, match=named):
        config(**changes)
