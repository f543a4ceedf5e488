"""Schedules against their definitions; settings that contradict each other."""

from __future__ import annotations

import math
from typing import Any

import pytest
from omegaconf import OmegaConf

from cab import UserError
from cab.config.run_config import TrainerConfig
from cab.files.config_folders import CONFIGS


def config(**changes: Any) -> TrainerConfig:
    values = OmegaConf.to_container(OmegaConf.load(CONFIGS / "trainer" / "default.yaml"))
    assert isinstance(values, dict)
    return TrainerConfig(**{str(k): v for k, v in {**values, "max_steps": 100, **changes}.items()})


def test_linear_warms_up_and_ends_at_zero() -> None:
    rate = config(schedule="linear", warmup_steps=10).rate(7)
    assert rate(0) == pytest.approx(0.1)
    assert rate(9) == pytest.approx(1.0)
    assert rate(55) == pytest.approx(0.5)
    assert rate(100) == 0.0


def test_cosine_falls_to_zero_over_half_a_wave() -> None:
    rate = config(schedule="cosine", warmup_steps=20).rate(7)
    assert [rate(step) for step in (9, 20, 60, 100)] == pytest.approx([0.5, 1.0, 0.5, 0.0])


def test_inverse_square_root_meets_the_warm_up() -> None:
    rate = config(schedule="inverse_sqrt", warmup_steps=16).rate(7)
    assert rate(15) == pytest.approx(1.0)
    assert rate(64) == pytest.approx(0.5)


def test_halving_counts_epochs() -> None:
    rate = config(schedule="exponential").rate(7)
    assert [rate(step) for step in (0, 6, 7, 13, 14)] == [1.0, 1.0, 0.5, 0.5, 0.25]


def test_informers_first_two_epochs_are_at_the_peak() -> None:
    """Informer2020, main_informer's exp/exp_informer.py and utils/tools.py: 0.5 ** (epoch - 1), from epoch 1 on."""
    rate = config(schedule="late_exponential").rate(7)
    assert [rate(7 * epoch) for epoch in range(6)] == [1.0, 1.0, 0.5, 0.25, 0.125, 0.0625]


def test_exponential_decay_goes_epoch_by_epoch_to_its_floor() -> None:
    rate = config(schedule="exponential", lr_decay=0.9, lr_decay_epochs=21, lr_min=0.02).rate(10)
    assert rate(9) == 1.0
    assert rate(215) == pytest.approx(0.9)
    assert rate(10**6) == 0.02


def test_epochs_become_steps() -> None:
    assert config(max_steps=None, max_epochs=6).num_steps(7) == 42


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"optimizer": "sgd"}, "adam, adamw"),
        ({"schedule": "step"}, "exponential"),
        ({"checkpoint_selection": "worst"}, "best, last, average"),
        ({"batch_size": 0}, "batch_size"),
        ({"max_epochs": 3}, "exactly one"),
        ({"max_steps": None}, "exactly one"),
        ({"max_steps": -1}, "max_steps must be an integer from 0 or null"),
        ({"validate_every": "day"}, "validate_every"),
        ({"validate_every": None}, "need validations"),
        ({"average_count": 0}, "average_count"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        config(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": "big"},
        {"batch_size": None},
        {"batch_size": True},
        {"micro_batch_size": 2.0},
        {"max_steps": 1e5},
        {"patience": 0},
        {"warmup_steps": None},
        {"num_workers": -1},
        {"learning_rate": "high"},
        {"learning_rate": -1.0},
        {"max_grad_norm": math.nan},
        {"weight_decay": True},
        {"lr_decay_epochs": 0},
        {"betas": 0.9},
        {"betas": [0.9]},
        {"betas": [0.9, 1.0]},
        {"betas": ["low", "high"]},
        {"validate_every": True},
        {"precision": "fp16"},
        {"precision": 16},
        {"optimizer": ["adam"]},
    ],
    ids=str,
)
def test_types_are_checked(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"trainer.{next(iter(changes))} must be"):
        config(**changes)
