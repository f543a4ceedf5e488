"""A cell as fairseq's command line: network, task and training."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast

import torch

from cab import Pattern, UserError
from cab.config.run_config import RunConfig, TrainerConfig
from cab.errors import UnsupportedError
from cab.records.identity import flat
from cab.registry.registries import BACKBONES
from cab.runner.batches import Shares
from cab.runner.cell import Cell
from cab.runner.processes import Processes
from tasks.lm.task import LM
from tasks.mlm.task import MLM
from tasks.sum.task import Sum

FAIRSEQ_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_accurate"}
"""Activation names: ours, and fairseq's."""
LACKING = ("residual", "norm", "feed_forward", "share_embeddings")
"""Backbone options that fairseq supports with their default values only.

Its decoders begin with the end token, whose embedding they would share with our encoder and output.
"""
SIDES = {"gpt2": ("decoder",), "roberta": ("encoder",), "transformer": ("encoder", "decoder")}
"""Stacks of layers of each backbone."""
SLOTS = {Pattern.NS: "encoder", Pattern.CS: "decoder", Pattern.CC: "cross"}
"""Names of the attentions of ``cab_transformer``."""
OUT_OF_REACH = {
    "glue": "the engine does not write sentence pairs for fairseq's sentence_prediction",
    "lm_recurrent": "fairseq's language models have no memory of earlier blocks",
    "lra": "fairseq has no task for classifying long sequences",
    "lstf": "fairseq has no task for forecasts of numbers",
    "pcc": "fairseq has no task for point clouds",
    "probe": "fairseq has no task with answers at some positions of a sequence",
    "sr": "fairseq has no task for images",
    "tts": "fairseq's speech tasks only read features that its own programs compute",
}
"""Why fairseq cannot train a task."""


def training_arguments(cell: Cell, *, num_processes: int = 1) -> list[str]:
    """Return the arguments of `fairseq-train DATA` for the cell, without folders, device and processes."""
    return [
        *network_arguments(cell),
        *task_arguments(cell),
        *trainer_arguments(cell.config.trainer, seed=cell.config.seed, num_processes=num_processes),
        *("--batch-size-valid", str(cast(LM | MLM | Sum, cell.task).evaluation_batch_size)),
        *("--best-checkpoint-metric", "nll_loss" if isinstance(cell.task, Sum) else "loss"),
    ]


def network_arguments(cell: Cell) -> list[str]:
    """Return the architecture, its sizes, and the attentions; UnsupportedError if fairseq has no such backbone."""
    config, name = cell.config, cell.config.backbone.name
    options = {**BACKBONES.get(name).options, **config.backbone.options, **cell.task.backbone_options(name)}
    for option in LACKING:
        if options.get(option) != BACKBONES.get(name).options.get(option):
            raise UnsupportedError(
                f"engine=fairseq does not support backbone.{option}={options[option]}; use engine=torch"
            )
    if name not in SIDES:
        raise UnsupportedError(
            f"engine=fairseq does not support backbone '{name}' (supported: gpt2, roberta, transformer)"
        )
    slots = SLOTS if name == "transformer" else {config.pattern: ""}
    attentions = [
        (slot and f"{slot}-", config.attention if pattern is config.pattern else config.other_attention[pattern])
        for pattern, slot in slots.items()
    ]
    return [
        *_architecture(name, options),
        *(["--checkpoint-activations"] if options["checkpoint_activations"] else []),
        *(word for side in SIDES[name] for word in _sizes(side, options)),
        *("--dropout", str(options["dropout"])),
        *("--attention-dropout", str(options["attention_dropout"])),
        *(
            word
            for slot, spec in attentions
            for word in (f"--{slot}attention", spec.name, f"--{slot}attention-options", attention_options(spec.options))
        ),
    ]


def _sizes(side: str, options: Mapping[str, Any]) -> list[str]:
    return [
        *(f"--{side}-embed-dim", str(options["embed_dim"])),
        *(f"--{side}-attention-heads", str(options["num_heads"])),
        *(f"--{side}-ffn-embed-dim", str(options["ffn_dim"])),
        *(f"--{side}-layers", str(options.get("num_layers") or options[f"{side}_layers"])),
    ]


def _architecture(name: str, options: Mapping[str, Any]) -> list[str]:
    if name == "roberta":
        return ["--arch", "cab_roberta_base", "--max-positions", str(options["max_length"])]
    if name == "transformer":
        return [
            *("--arch", "cab_transformer", "--activation-fn", "gelu", "--encoder-learned-pos", "--decoder-learned-pos"),
            *("--max-source-positions", str(options["max_source_length"])),
            *("--max-target-positions", str(options["max_target_length"])),
            *(["--layernorm-embedding"] if options["embed_layer_norm"] else []),
        ]
    if options["positions"] == "none":
        raise UnsupportedError(
            "engine=fairseq does not support backbone.positions=none; change it, or use engine=torch"
        )
    arguments = ["--arch", "cab_gpt2", "--activation-fn", FAIRSEQ_ACTIVATIONS[options["activation"]]]
    if options["positions"] == "learned":
        arguments += ["--decoder-learned-pos", "--max-target-positions", str(options["max_length"])]
    if not options["scale_embedding"]:
        arguments += ["--no-scale-embedding"]
    return arguments


def attention_options(options: Mapping[str, Any]) -> str:
    """Format options for the plug-in: ``name=value``, or ``part.name=value`` of a stack, separated by spaces."""
    return " ".join(f"{name}={json.dumps(value, separators=(',', ':'))}" for name, value in flat(options).items())


def check_task(cell: Cell) -> None:
    """Raise UnsupportedError for a task that fairseq cannot train."""
    if type(cell.task) not in (LM, MLM, Sum):
        name = cell.config.task.name
        reason = f": {OUT_OF_REACH[name]}" if name in OUT_OF_REACH else ""  # a plug-in
        raise UnsupportedError(
            f"engine=fairseq does not support task '{name}'{reason} (supported: lm, mlm, sum); use engine=torch"
        )


def task_arguments(cell: Cell) -> list[str]:
    """Return fairseq's task and criterion, for training and for its own score."""
    check_task(cell)
    task = cast(LM | MLM | Sum, cell.task)
    if isinstance(task, Sum):
        size = task.backbone_options("transformer")["vocab_size"]
        smoothing = task.label_smoothing * (size - 1) / size  # fairseq gives none of it to the right token
        arguments = ["--task", "translation", "--source-lang", "source", "--target-lang", "target"]
        return [*arguments, "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", str(smoothing)]
    if isinstance(task, LM):
        name, criterion, rest = "language_modeling", "cross_entropy", ["--sample-break-mode", "none"]
    else:
        name, criterion = "masked_lm", "masked_lm"
        # fairseq's training skips a line longer than a block; its validation would raise.
        rest = ["--sample-break-mode", "complete", "--skip-invalid-size-inputs-valid-test"]
        rest += ["--mask-prob", str(task.mask_share)]
    return ["--task", name, "--criterion", criterion, "--tokens-per-sample", str(task.block_len), *rest]


def precision_arguments(precision: str, device: str) -> list[str]:
    """Return the arguments for 16-bit training with float32 weights; on a CPU in bfloat16, as with ``engine=torch``.

    fairseq's own `--fp16` also converts the weights, and its `--bf16` needs a TPU.
    """
    if precision == "32-true":
        return []
    return ["--amp"] if precision == "16-mixed" and device == "cuda" else ["--autocast", "bfloat16"]


def process_arguments(processes: Processes, device: torch.device, rendezvous: str) -> list[str]:
    """Return the arguments of one of several processes, which meet at an address ``tcp://HOST:PORT``."""
    return [
        *("--distributed-world-size", str(processes.count)),
        *("--distributed-rank", str(processes.rank)),
        *("--distributed-init-method", rendezvous),
        *("--distributed-backend", "nccl" if device.type == "cuda" else "gloo"),
        *("--device-id", str(device.index or 0)),
        "--distributed-no-spawn",  # the processes are those of the run
        *("--ddp-backend", "legacy_ddp"),  # the one that runs on a CPU, and with weights that are not used
        "--load-checkpoint-on-all-dp-ranks",  # fairseq's broadcast of a checkpoint fails with torch's safe loader
    ]


def check_settings(run: RunConfig, processes: Processes) -> None:
    """Raise UserError for settings that fairseq does not support."""
    config = run.trainer
    lacking = {
        "profile=true": run.profile,
        "trainer.optimizer=adam with a weight_decay (use adamw)": config.optimizer == "adam" and config.weight_decay,
        "trainer.decay_vectors=false": not config.decay_vectors and config.weight_decay,
        f"trainer.schedule={config.schedule}": config.schedule.endswith("exponential"),
        f"trainer.schedule={config.schedule} without max_steps": config.schedule in ("linear", "cosine")
        and not config.max_steps,
        "trainer.checkpoint_selection=average": config.checkpoint_selection == "average",
        f"trainer.stop_at={config.stop_at}": config.stop_at is not None,
        "trainer.stop_when_diverged=false": not config.stop_when_diverged,
        f"trainer.strategy={config.strategy} with several processes": config.strategy != "ddp" and processes.count > 1,
        "trainer.compile=true": config.compile,
        f"trainer.kernels={config.kernels}": config.kernels is not None,
        "trainer.float32_matmul_precision=high": config.float32_matmul_precision == "high",
        "trainer.max_steps=0": (config.max_steps or config.max_epochs) == 0,
    }
    shares_of(config, processes.count)
    for setting, is_asked in lacking.items():
        if is_asked:
            raise UserError(f"engine=fairseq does not support {setting}; change it, or use engine=torch")


def trainer_arguments(config: TrainerConfig, *, seed: int, num_processes: int = 1) -> list[str]:
    """Return batches, optimizer, learning rate, validation and checkpoints."""
    shares = shares_of(config, num_processes)
    length = ("--max-update", config.max_steps) if config.max_steps else ("--max-epoch", config.max_epochs)
    options: dict[str, Any] = {
        "--seed": seed,
        "--batch-size": shares.micro_batch_size,
        "--update-freq": shares.accumulate,
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
        "--log-interval": math.gcd(config.log_every, history_interval(config)),
    }
    every = config.validate_every
    if every != "epoch":  # or it would also validate and save after each epoch, perhaps of a few steps
        options |= {"--validate-interval": length[1], "--save-interval": length[1]}
    if isinstance(every, int):
        options["--validate-interval-updates"] = every
        if config.checkpoint_selection == "best" and every % config.checkpoint_every:
            options["--save-interval-updates"] = every  # fairseq chooses the best of its checkpoints
    flags = ["--no-epoch-checkpoints", *(["--disable-validation"] if every is None else [])]
    return [*(str(word) for option in options.items() for word in option), *flags]


def shares_of(config: TrainerConfig, num_processes: int) -> Shares:
    """Return the micro-batches of a step; UserError if its batch cannot be divided into them."""
    size = config.batch_size
    return Shares.cut(
        num_items=size, batch_size=size, micro_batch_size=config.micro_batch_size, num_processes=num_processes
    )


def history_interval(config: TrainerConfig) -> int:
    """Return the number of steps between two entries of the record's history."""
    return max(1, (config.max_steps or 10_000) // 100)
