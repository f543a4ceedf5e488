"""First weights of networks at small sizes against those that upstream's own initialization drew, seed 0."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

from cab import build_backbone

SIZES: dict[str, dict[str, Any]] = {
    "roberta": {"vocab_size": 3000, "max_length": 8, "num_layers": 1},
    "sr3": {"image_size": 8, "base_channels": 8, "channel_multipliers": [1, 2], "attention_resolutions": [4]},
    "pointr": {"embed_dim": 96, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "num_queries": 64},
}
SIZES["sr3"] |= {"num_blocks": 1, "norm_groups": 4}

with (Path(__file__).parent / "initial_weights.csv").open(newline="") as file:
    ROWS = list(csv.DictReader(file))


@pytest.fixture(scope="module")
def weights():
    torch.manual_seed(0)
    return {
        name: dict(build_backbone(name, attention="vanilla", pattern="NS", **sizes).named_parameters())
        for name, sizes in SIZES.items()
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['backbone']}-{row['ours']}-{row['statistic']}")
def test_first_weights(row, weights):
    weight = weights[row["backbone"]][row["ours"]].detach()
    found = {
        "std": lambda: weight.std(),
        "max": lambda: weight.abs().max(),
        "least singular value": lambda: torch.linalg.svdvals(weight.flatten(1)).min(),
        "largest singular value": lambda: torch.linalg.svdvals(weight.flatten(1)).max(),
    }[row["statistic"]]()
    tolerance = {"std": 0.08, "max": 0.0}.get(row["statistic"], 1e-4)
    assert found.item() == pytest.approx(float(row["value"]), rel=tolerance), row["upstream"]
