"""Measure the decode state of every attention of this repository, and write configs/decode_states.csv."""

from __future__ import annotations

import csv

import torch

from cab.registry.build import measure_decode_state
from cab.registry.registries import ATTENTIONS
from cab.registry.tables import CONFIGS

FILE = CONFIGS / "decode_states.csv"


def measured() -> list[list[str]]:
    """Return the header, and the name and size of each attention."""
    torch.set_num_threads(1)  # the sizes are tiny
    own = [entry for entry in ATTENTIONS if entry.location.module.startswith("attentions.")]
    return [["attention", "state"], *([entry.name, measure_decode_state(entry)] for entry in own)]


if __name__ == "__main__":
    with FILE.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(measured())
