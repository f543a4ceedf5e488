"""Conversion of weights between CAB's backbones and fairseq's checkpoints."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from backbones.fairseq_weights import fairseq_gpt2_weights, fairseq_roberta_weights
from backbones.gpt2 import GPT2
from backbones.pretrained import load_fairseq_gpt2, load_fairseq_roberta
from backbones.roberta import RoBERTa
from cab import Backbone
from engines.fairseq import environment


def write_checkpoint(backbone: Backbone, path: Path, arguments: Sequence[str]) -> None:
    """Write the weights of ``backbone`` as a fairseq checkpoint; ``arguments`` are those of `fairseq-train`."""
    weights, unfinished = path.with_suffix(".weights"), path.with_suffix(".unfinished")
    torch.save(fairseq_weights(backbone), weights)
    command = ["-P", "-m", "cab_fairseq.checkpoint", str(weights), str(unfinished), *arguments]
    environment.run("python", command, log=path.with_suffix(".log"))
    unfinished.replace(path)
    weights.unlink()


def fairseq_weights(backbone: Backbone) -> dict[str, Tensor]:
    """Return the backbone's weights with fairseq's names."""
    if isinstance(backbone, GPT2):
        return fairseq_gpt2_weights(backbone)
    assert isinstance(backbone, RoBERTa)
    return fairseq_roberta_weights(backbone)


def load_weights(backbone: Backbone, weights: Mapping[str, Tensor]) -> None:
    """Load weights with fairseq's names into the backbone."""
    if isinstance(backbone, GPT2):
        missing = load_fairseq_gpt2(backbone, weights)
    else:
        assert isinstance(backbone, RoBERTa)
        missing = load_fairseq_roberta(backbone, weights)
    assert not missing, missing


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Read the weights of a fairseq checkpoint."""
    with torch.serialization.safe_globals([argparse.Namespace]):
        weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)["model"]
    return weights
