"""Write encoded documents and summaries as the data of fairseq's task `translation`, without additional tokens.

    .venv-fairseq/bin/python -m cab_fairseq.pairs PAIRS OUT

PAIRS is a folder of :class:`tasks.sum.data.EncodedPairs`; the files are ``OUT.source-target.source.bin`` and so on.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder


def write_pairs(pairs: Path, out: Path) -> None:
    """Write both sides. fairseq itself shifts a target, which therefore lacks its begin token."""
    tokens, bounds = np.memmap(pairs / "tokens.bin", dtype="int32", mode="r"), np.load(pairs / "bounds.npy")
    for offset, language in enumerate(("source", "target")):
        prefix = f"{out}.source-target.{language}"
        builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32)
        for row in range(offset, len(bounds) - 1, 2):
            builder.add_item(torch.from_numpy(tokens[bounds[row] + offset : bounds[row + 1]].copy()))
        builder.finalize(f"{prefix}.idx")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="cab_fairseq.pairs", description="write pairs as fairseq's data")
    parser.add_argument("pairs", type=Path)
    parser.add_argument("out", type=Path)
    known = parser.parse_args()
    write_pairs(known.pairs, known.out)
