"""A cell as fairseq's command line: network, task and training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from cab import UserError
from cab.config.run_config import RunConfig, TrainerConfig
from cab.errors import UnsupportedError
from cab.records.identity import flat
from cab.registry.registries import BACKBONES
from cab.runner.cell import Cell
from tasks.lm.task import LM
from tasks.mlm.task import MLM

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_accurate"}
"""Activation names: ours, and fairseq's."""
LACKING = ("residual",)
"""Backbone options that fairseq supports with their default values only."""


def training_arguments(cell: Cell) -> list[str]:
    """Return the arguments of `fairseq-train DATA` for the cell, without folders and device."""
    return [
        *network_arguments(cell),
        *task_arguments(cell),
        *trainer_arguments(cell.config.trainer, seed=cell.config.seed),
        *("--batch-size-valid", str(cast(LM | MLM, cell.task).evaluation_batch_size)),
    ]


def network_arguments(cell: Cell) -> list[str]:
    """Return the architecture, its sizes, and the attention; UnsupportedError if fairseq has no such backbone."""
    task_options = cell.task.backbone_options(cell.config.backbone.name)
    options = {**BACKBONES.get(cell.config.backbone.name).options, **cell.config.backbone.options, **task_options}
    for name in LACKING:
        if options.get(name) != BACKBONES.get(cell.config.backbone.name).options.get(name):
            raise UnsupportedError(f"engine=fairseq does not support backbone.{name}={options[name]}; use engine=torch")
    if cell.config.backbone.name == "gpt2":
        arguments = _gpt2(options)
    elif cell.config.backbone.name == "roberta":
        arguments = ["--arch", "cab_roberta_base", "--max-positions", str(options["max_length"])]
    else:
        raise UnsupportedError(
            f"engine=fairseq does not support backbone '{cell.config.backbone.name}' (supported: gpt2, roberta)"
        )
    side = "decoder" if cell.config.backbone.name == "gpt2" else "encoder"
    if options["checkpoint_activations"]:
        arguments += ["--checkpoint-activations"]
    return [
        *arguments,
        *(f"--{side}-embed-dim", str(options["embed_dim"])),
        *(f"--{side}-attention-heads", str(options["num_heads"])),
        *(f"--{side}-ffn-embed-dim", str(options["ffn_dim"])),
        *(f"--{side}-layers", str(options["num_layers"])),
        *("--dropout", str(options["dropout"])),
        *("--attention-dropout", str(options["attention_dropout"])),
        *("--attention", cell.config.attention.name),
        *("--attention-options", attention_options(cell.config.attention.options)),
    ]


def _gpt2(options: Mapping[str, Any]) -> list[str]:
    if options["positions"] == "none":
        raise UnsupportedError(
            "engine=fairseq does not support backbone.positions=none; change it, or use engine=torch"
        )
    arguments = ["--arch", "cab_gpt2", "--activation-fn", ACTIVATIONS[options["activation"]]]
    if options["positions"] == "learned":
        arguments += ["--decoder-learned-pos", "--max-target-positions", str(options["max_length"])]
    if not options["scale_embedding"]:
        arguments += ["--no-scale-embedding"]
    return arguments


def attention_options(options: Mapping[str, Any]) -> str:
    """Format options for the plug-in: ``name=value``, or ``part.name=value`` of a stack, separated by spaces."""
    return " ".join(f"{name}={json.dumps(value, separators=(',', ':'))}" for name, value in flat(options).items())


def task_arguments(cell: Cell) -> list[str]:
    """Return fairseq's task and criterion, for training and for its own score."""
    task = cell.task
    if type(task) is LM:
        name, criterion, rest = "language_modeling", "cross_entropy", ["--sample-break-mode", "none"]
    elif isinstance(task, MLM):
        name, criterion = "masked_lm", "masked_lm"
        # fairseq's training skips a line longer than a block; its validation would raise.
        rest = ["--sample-break-mode", "complete", "--skip-invalid-size-inputs-valid-test"]
        rest += ["--mask-prob", str(task.mask_share)]
    else:
        raise UnsupportedError(f"engine=fairseq does not support task '{cell.config.task.name}' (supported: lm, mlm)")
    return ["--task", name, "--criterion", criterion, "--tokens-per-sample", str(task.block_len), *rest]


def check_settings(run: RunConfig) -> None:
    """Raise UserError for settings that fairseq does not support."""
    config = run.trainer
    lacking = {
        "profile=true": run.profile,
        f"logger={run.logger.name}": run.logger.name != "csv",
        "trainer.optimizer=adam with a weight_decay (use adamw)": config.optimizer == "adam" and config.weight_decay,
        "trainer.decay_vectors=false": not config.decay_vectors and config.weight_decay,
        f"trainer.schedule={config.schedule}": config.schedule.endswith("exponential"),
        f"trainer.schedule={config.schedule} without max_steps": config.schedule in ("linear", "cosine")
        and not config.max_steps,
        "trainer.checkpoint_selection=average": config.checkpoint_selection == "average",
        f"trainer.stop_at={config.stop_at}": config.stop_at is not None,
        "trainer.stop_when_diverged=false": not config.stop_when_diverged,
        f"trainer.precision={config.precision}": config.precision != "32-true",
        "trainer.compile=true": config.compile,
        "trainer.float32_matmul_precision=high": config.float32_matmul_precision != "highest",
        f"trainer.log_every={config.log_every}": config.log_every != TrainerConfig.defaults()["log_every"],
        "trainer.max_steps=0": (config.max_steps or config.max_epochs) == 0,
    }
    micro = config.micro_batch_size or config.batch_size
    if config.batch_size % min(micro, config.batch_size):
        raise UserError(
            f"trainer.batch_size={config.batch_size} must be a multiple of trainer.micro_batch_size={micro} "
            "with engine=fairseq"
        )
    for setting, is_asked in lacking.items():
        if is_asked:
            raise UserError(f"engine=fairseq does not support {setting}; change it, or use engine=torch")


def trainer_arguments(config: TrainerConfig, *, seed: int) -> list[str]:
    """Return batches, optimizer, learning rate, validation and checkpoints."""
    micro = min(config.micro_batch_size or config.batch_size, config.batch_size)
    length = ("--max-update", config.max_steps) if config.max_steps else ("--max-epoch", config.max_epochs)
    options: dict[str, Any] = {
        "--seed": seed,
        "--batch-size": micro,
        "--update-freq": config.batch_size // micro,
        "--required-batch-size-multiple": 1,
        "--num-workers": config.num_workers,
        length[0]: length[1],
        "--optimizer": "adam",
        "--adam-betas": str(tuple(config.betas)),
        "--adam-eps": config.eps,
        "--weight-decay": config.weight_decay,
        "--clip-norm": config.max_grad_norm,
        "--lr": config.learning_rate,
        "--lr-scheduler": "cab",
        "--schedule": config.schedule,
        "--warmup-updates": config.warmup_steps,
        "--total-num-update": config.max_steps or 0,
        "--save-interval-updates": config.checkpoint_every,
        "--keep-interval-updates": 1,
        "--patience": config.patience or -1,
        "--log-format": "json",
        "--log-interval": max(1, (config.max_steps or 10_000) // 100),
    }
    if isinstance(config.validate_every, int):
        options["--validate-interval-updates"] = config.validate_every
    flags = ["--no-epoch-checkpoints", *(["--disable-validation"] if config.validate_every is None else [])]
    return [*(str(word) for option in options.items() for word in option), *flags]
