"""The checked configuration of a run: batches, optimizer and schedule, where it runs, and what it trains."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from annotated_types import Gt, Interval, MinLen

from cab.errors import UserError, unknown_name
from cab.files.disk import user_path
from cab.patterns import Pattern
from cab.records.identity import flat
from cab.records.record import LARGEST_SEED, Status
from cab.registry.options import (
    Natural,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    annotations_of,
    check_complete,
    checked_options,
)
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS, Registry
from cab.registry.specs import parse_other_attention
from cab.registry.tables import run_defaults, trainer_defaults, tuned_options
from cab.spec import Spec

if TYPE_CHECKING:
    import torch


REGISTRIES: Mapping[str, Registry[Any]] = {"attention": ATTENTIONS, "backbone": BACKBONES, "task": TASKS}
MAX_WORKERS = 256
BelowOne = Annotated[float, Interval(ge=0, lt=1)]


@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """A group of options whose values are checked against their annotations."""

    group: ClassVar[str]

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return the default of each option that has one."""
        parameters = inspect.signature(cls).parameters.values()
        return {option.name: option.default for option in parameters if option.default is not option.empty}

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> Self:
        """Create the group from plain values; UserError for an option that is unknown, missing or invalid."""
        kinds, defaults = annotations_of(cls), cls.defaults()
        check_complete(options, kinds, cls.group, defaults=defaults)
        return cls(**checked_options(options, kinds, cls.group, defaults=defaults))


@dataclass(frozen=True, kw_only=True)
class TrainerConfig(OptionGroup):
    """See configs/trainer/default.yaml for the meaning of each; a float is a finite number from 0."""

    group: ClassVar[str] = "trainer"
    batch_size: Positive
    micro_batch_size: Positive | None
    strategy: Literal["ddp", "fsdp"]
    max_epochs: Natural | None
    max_steps: Natural | None
    optimizer: Literal["adam", "adamw"]
    learning_rate: NonNegativeFloat
    betas: tuple[BelowOne, BelowOne]
    eps: NonNegativeFloat
    weight_decay: NonNegativeFloat
    decay_vectors: bool
    max_grad_norm: NonNegativeFloat
    schedule: Literal["constant", "linear", "cosine", "inverse_sqrt", "exponential", "late_exponential"]
    warmup_steps: Natural
    lr_decay: NonNegativeFloat
    lr_decay_epochs: Annotated[int | float, Gt(0)]
    lr_min: NonNegativeFloat
    validate_every: Literal["epoch"] | Positive | None
    stop_at: NonNegativeFloat | None
    patience: Positive | None
    checkpoint_selection: Literal["best", "last", "average"]
    average_every: Positive
    average_count: Positive
    precision: Literal["32-true", "bf16-mixed", "16-mixed"]
    checkpoint_every: Positive
    log_every: Positive = 50  # records of older runs lack it
    num_workers: Annotated[int, Interval(ge=0, le=MAX_WORKERS)]
    stop_when_diverged: bool
    kernels: str | dict[str, str] | None = None  # records of older runs lack it
    compile: bool
    float32_matmul_precision: Literal["highest", "high"]

    def __post_init__(self) -> None:
        if (self.max_epochs is None) == (self.max_steps is None):
            raise UserError("set exactly one of trainer.max_epochs and trainer.max_steps")
        stops_early = self.patience is not None or self.stop_at is not None
        if self.validate_every is None and (self.checkpoint_selection == "best" or stops_early):
            raise UserError(
                "trainer.checkpoint_selection=best, trainer.patience and trainer.stop_at need validations: set "
                "trainer.validate_every"
            )

    def num_steps(self, steps_per_epoch: int) -> int:
        """Return the number of optimizer steps of the whole run."""
        return self.max_steps if self.max_steps is not None else (self.max_epochs or 0) * steps_per_epoch

    def autocast(self, device: torch.device) -> torch.autocast:
        """Return the context of :func:`cab.recipe.autocast`."""
        from cab.recipe import autocast  # imports torch

        return autocast(self.precision, device)

    def matmul_precision(self) -> AbstractContextManager[None]:
        """Return the context of :func:`cab.recipe.matmul_precision`."""
        from cab.recipe import matmul_precision  # imports torch

        return matmul_precision(self.float32_matmul_precision)

    def rate(self, steps_per_epoch: int) -> Callable[[int], float]:
        """Return the schedule: the learning rate after ``step`` steps as a factor of the peak rate."""
        from cab.recipe import rate_factor  # imports torch

        return functools.partial(
            rate_factor,
            schedule=self.schedule,
            warmup=self.warmup_steps,
            total=self.num_steps(steps_per_epoch),
            steps_per_epoch=steps_per_epoch,
            decay=self.lr_decay,
            decay_epochs=self.lr_decay_epochs,
            minimum=self.lr_min,
        )


@dataclass(frozen=True, kw_only=True)
class ClusterConfig(OptionGroup):
    """``cluster=none``: run the cells one after another in this process."""

    group: ClassVar[str] = "cluster"


@dataclass(frozen=True, kw_only=True)
class LocalConfig(ClusterConfig):
    """``cluster=local``; see configs/cluster/local.yaml for the meaning of each option."""

    workers: Annotated[int, Interval(ge=1, le=MAX_WORKERS)] | None = None
    workers_per_gpu: Annotated[int, Interval(ge=1, le=MAX_WORKERS)] = 1
    gpus: Annotated[int, Interval(ge=1, le=MAX_WORKERS)] = 1


@dataclass(frozen=True, kw_only=True)
class SlurmConfig(ClusterConfig):
    """``cluster=slurm``; see configs/cluster/slurm.yaml for the meaning of each option."""

    partition: str | None = None
    time: Positive | None = None
    nodes: Positive = 1
    gpus: Natural | None = None
    processes: Positive | None = None
    cpus: Positive = 8
    memory: PositiveFloat | None = None
    constraint: str | None = None
    account: str | None = None
    qos: str | None = None
    max_concurrent_jobs: Positive = 256
    max_requeues: Natural = 20
    wait: bool = True
    setup: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)


CLUSTERS: Mapping[str, type[ClusterConfig]] = {"none": ClusterConfig, "local": LocalConfig, "slurm": SlurmConfig}


def parse_cluster(group: Mapping[str, Any]) -> ClusterConfig:
    """Return the cluster for a name and its options."""
    options = dict(group)
    name = options.pop("name")
    if name not in CLUSTERS:
        raise unknown_name("cluster", name, CLUSTERS)
    return CLUSTERS[name].parse(options)


@dataclass(frozen=True, kw_only=True)
class DataConfig(OptionGroup):
    """The group ``data``, which controls how missing data are obtained."""

    group: ClassVar[str] = "data"
    download: bool


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A composed configuration, with every value checked and parsed.

    See configs/run.yaml for the meaning of each key.

    Attributes:
        other_attention: the attention for the slots outside the test, for every pattern.
        tuning: the grid of learning rates from which ``trainer.learning_rate`` was chosen; None for the rate of the
            recipe.
        resolved: the configuration as plain values, as records store it.
    """

    task: Spec
    dataset: str
    backbone: Spec
    attention: Spec
    trainer: TrainerConfig
    logger: Spec
    cluster: ClusterConfig
    preset: str
    pattern: Pattern
    seed: Annotated[int, Interval(ge=0, le=LARGEST_SEED)]
    other_attention: Mapping[Pattern, Spec]
    tuning: dict[str, Any] | None
    results_dir: Path
    data_root: Path | None
    data: DataConfig
    device: Literal["auto", "cpu", "cuda"]
    engine: str
    profile: bool
    force: bool
    accept_code: bool | None
    retry: tuple[Status, ...]
    resolved: Mapping[str, Any]

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> RunConfig:
        """Check and parse the plain values of a composed configuration."""
        check_complete(config, KEYS)
        plain = checked_options(config, KEYS, defaults=run_defaults())
        if not set(plain["retry"]) <= set(Status):
            raise UserError(f"retry must be a list of {', '.join(Status)}, got {plain['retry']}")
        for group, registry in REGISTRIES.items():
            spec = Spec.of(plain[group])
            entry = registry.get(spec.name)
            options = entry.check_options(spec.options, group)
            plain[group] = {"name": entry.name, **{name: _one_spelling(name, value) for name, value in options.items()}}
        trainer, data = TrainerConfig.parse(plain["trainer"]), DataConfig.parse(plain["data"])
        pattern = Pattern.parse(plain["pattern"])
        plain |= {"trainer": vars(trainer), "data": vars(data), "pattern": str(pattern)}
        parsed = {group: Spec.of(plain[group]) for group in ("task", "backbone", "attention", "logger")} | {
            "dataset": plain["dataset"]["name"],
            "trainer": trainer,
            "cluster": parse_cluster(plain["cluster"]),
            "pattern": pattern,
            "other_attention": parse_other_attention(plain["other_attention"]),
            "results_dir": user_path(plain["results_dir"]),
            "data_root": user_path(plain["data_root"]) if plain["data_root"] else None,
            "data": data,
            "retry": tuple(map(Status, plain["retry"])),
        }
        return cls(**plain | parsed, resolved=plain)

    @property
    def defaults(self) -> dict[str, Any]:
        """Defaults of all options that have one, by names such as ``trainer.betas``.

        Those of the attention under test are its usual options in the cell, which its name in tables does not show.
        """
        cell = (self.task.name, self.backbone.name, str(self.pattern), self.attention.name)
        options = {
            "task": TASKS.get(self.task.name).options,
            "backbone": BACKBONES.get(self.backbone.name).options,
            "attention": tuned_options(*cell, preset=self.preset),
        }
        for pattern, spec in self.other_attention.items():
            options[f"other_attention.{pattern}"] = ATTENTIONS.get(spec.name).options
        return flat({**run_defaults(), "trainer": trainer_defaults(), **options})


def _one_spelling(option: str, value: Any) -> Any:
    """Return the usual spelling of the path of a file or folder, since ``./texts/`` and ``texts`` are the same data.

    Any other value is returned unchanged, such as a name on the Hugging Face Hub, and so is ``./gpt2`` of a tokenizer,
    whose plain name is that of a published one.
    """
    # os.path.exists is also False for a path that is too long or has a null character
    is_path = isinstance(value, str) and "/" in value and os.path.exists(user_path(value))  # noqa: PTH110
    spelling = str(Path(value)) if is_path else value
    return spelling if option != "tokenizer" or "/" in str(spelling) else value


KEYS: Mapping[str, Any] = {
    **{name: kind for name, kind in annotations_of(RunConfig).items() if name != "resolved"},
    **dict.fromkeys(("task", "dataset", "backbone", "attention", "trainer", "logger", "cluster", "data"), Mapping),
    "pattern": str,
    "other_attention": str | dict[str, Any],
    "results_dir": Annotated[str, MinLen(1)],
    "data_root": str | None,
    "retry": list[str],
}
"""The annotation of each key of a composed configuration, before it is parsed."""
