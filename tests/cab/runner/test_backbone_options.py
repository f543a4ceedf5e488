"""Options of backbones identify the cell, and the fairseq engine refuses those that it lacks."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace

import pytest

from cab import UserError
from cab.config.compose import compose
from cab.runner.cell import Cell
from engines.fairseq.command import network_arguments

CELL = ["dataset=synthetic", "attention=vanilla", "preset=smoke", "device=cpu"]
LM, MLM = [*CELL, "task=lm", "pattern=CS"], [*CELL, "task=mlm", "pattern=NS"]


@pytest.mark.parametrize(("cell", "change"), [(LM, "backbone.reversible=true"), (MLM, "backbone.funnel_blocks=[1,1]")])
def test_another_value_is_another_cell(cell: list[str], change: str) -> None:
    assert Cell.from_config(compose([*cell, change])).hash != Cell.from_config(compose(cell)).hash


@pytest.mark.parametrize(
    ("cell", "change"), [(LM, "backbone.weight_sharing=universal"), (MLM, "backbone.funnel_blocks=[1,1]")]
)
def test_fairseqs_networks_have_the_usual_one_alone(cell: list[str], change: str) -> None:
    task = SimpleNamespace(backbone_options=lambda _: {})
    other = dataclasses.replace(Cell.from_config(compose([*cell, change])), task=task)  # type: ignore[arg-type]
    with pytest.raises(
        UserError, match=f"engine=fairseq does not support {re.escape(change.partition('=')[0])}=.*; use engine=torch"
    ):
        network_arguments(other)
