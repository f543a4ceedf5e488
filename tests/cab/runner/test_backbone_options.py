"""Options of backbones that came after records were committed make no other cell of those records."""

from __future__ import annotations

import dataclasses
import logging
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from cab import UserError
from cab.config.backbone_options import ADDED
from cab.records.results import load_results
from cab.registry.registries import BACKBONES
from cab.runner.cell import Cell
from cab.runner.launch import composed
from cab.scoring.selection import comparable
from engines.fairseq.command import network_arguments
from tests.cab.made_records import make_record

CELL = ["dataset=synthetic", "attention=vanilla", "preset=smoke", "device=cpu"]
LM, MLM = [*CELL, "task=lm", "pattern=CS"], [*CELL, "task=mlm", "pattern=NS"]


def test_what_is_added_is_the_default_of_every_backbone_that_has_it() -> None:
    options = {entry.name: entry.options for entry in BACKBONES}
    for name, usual in ADDED.items():
        defaults = [own[name] for own in options.values() if name in own]
        assert defaults
        assert defaults == [usual] * len(defaults), name


@pytest.mark.parametrize(("cell", "change"), [(LM, "backbone.reversible=true"), (MLM, "backbone.funnel_blocks=[1,1]")])
def test_another_value_is_another_cell_and_the_usual_one_the_same_as_ever(cell: list[str], change: str) -> None:
    config = composed(cell)
    usual = Cell.from_config(config)
    older = {name: value for name, value in config["backbone"].items() if name not in ADDED}
    assert len(older) < len(config["backbone"])
    assert Cell.from_config({**config, "backbone": older}).hash == usual.hash
    assert not set(ADDED) & set(usual.identity["backbone"])
    other = Cell.from_config(composed([*cell, change]))
    assert other.hash != usual.hash


@pytest.mark.parametrize(
    ("cell", "change"), [(LM, "backbone.weight_sharing=universal"), (MLM, "backbone.funnel_blocks=[1,1]")]
)
def test_fairseqs_networks_have_the_usual_one_alone(cell: list[str], change: str) -> None:
    task = SimpleNamespace(backbone_options=lambda _: {})
    other = dataclasses.replace(Cell.from_config(composed([*cell, change])), task=task)  # type: ignore[arg-type]
    with pytest.raises(
        UserError, match=f"engine=fairseq does not support {re.escape(change.partition('=')[0])}=.*; use engine=torch"
    ):
        network_arguments(other)


@pytest.mark.parametrize(("changes", "is_told"), [({}, False), ({"reversible": True}, True)])
def test_records_from_before_are_compared_with_those_from_after(
    changes: dict[str, bool], is_told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = {"name": "gpt2", "num_layers": 2}
    for attention, options in (("vanilla", before), ("abc", {**before, **ADDED, **changes})):
        make_record({"mse": 1.0}, attention=attention, config={"backbone": options}).write(tmp_path)
    with caplog.at_level(logging.WARNING, "cab"):
        comparable(load_results(tmp_path))
    assert ("compared under different settings" in caplog.text) == is_told
