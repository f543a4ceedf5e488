"""Write weights to a checkpoint that every fairseq program can load.

    .venv-fairseq/bin/python -m cab_fairseq.checkpoint WEIGHTS OUT DATA --user-dir cab_fairseq --arch cab_gpt2 ...

WEIGHTS is a state dict with fairseq's names (:mod:`engines.fairseq.weights`), saved by torch; the arguments after OUT
are those of `fairseq-train`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer


def write_checkpoint(weights: Path, out: Path, arguments: Sequence[str]) -> None:
    """Build the network that the arguments describe, load the weights, and save it before its first step."""
    parsed = options.parse_args_and_arch(options.get_training_parser(), input_args=list(arguments))
    config = convert_namespace_to_omegaconf(parsed)
    task = tasks.setup_task(config.task)
    model = task.build_model(config.model)
    model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True), strict=True)
    trainer = Trainer(config, task, model, task.build_criterion(config.criterion))
    trainer.consolidate_optimizer()
    trainer.save_checkpoint(str(out), {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}, "val_loss": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="cab_fairseq.checkpoint", description="convert weights to a fairseq checkpoint"
    )
    parser.add_argument("weights", type=Path)
    parser.add_argument("out", type=Path)
    known, rest = parser.parse_known_args()
    write_checkpoint(known.weights, known.out, rest)
