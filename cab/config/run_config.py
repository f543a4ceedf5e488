"""The checked configuration of a run: batches, optimizer and schedule, where it runs, and what it trains."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self

from annotated_types import Gt, Interval, MinLen

from cab.errors import UserError, unknown_name
from cab.files.disk import user_path
from cab.patterns import Pattern
from cab.records.identity import AUTO, DEFAULT_ENGINE, flat
from cab.records.record import Status
from cab.registry.options import Natural, NonNegativeFloat, Positive, annotations_of, check_complete, checked_options
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS, Registry
from cab.registry.specs import parse_other_attention
from cab.registry.tables import run_defaults, trainer_defaults, tuned_options
from cab.spec import Spec

if TYPE_CHECKING:
    import torch


REGISTRIES: Mapping[str, Registry[Any]] = {"attention": ATTENTIONS, "backbone": BACKBONES, "task": TASKS}
MAX_WORKERS = 256  # a larger number is a typing error
BelowOne = Annotated[float, Interval(ge=0, lt=1)]


@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """A group of options whose values are checked against their annotations."""

    group: ClassVar[str]

    @classmethod
    @functools.cache
    def defaults(cls) -> Mapping[str, Any]:
        """Return the default of each option that has one."""
        parameters = inspect.signature(cls).parameters.values()
        return {option.name: option.default for option in parameters if option.default is not option.empty}

    @classmethod
    def examples(cls) -> Mapping[str, Any]:
        """Return values of options for messages."""
        return cls.defaults()

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> Self:
        """Create the group from plain values; UserError for an option that is unknown, missing or invalid."""
        kinds, defaults = annotations_of(cls), cls.defaults()  # type: ignore[arg-type]  # mypy: a class is hashable
        check_complete(options, kinds, cls.group, defaults=defaults)
        return cls(**checked_options(options, kinds, cls.group, defaults=cls.examples()))


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
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed"]
    checkpoint_every: Positive
    log_every: Positive = 50  # records of older runs lack it
    num_workers: Annotated[int, Interval(ge=0, le=MAX_WORKERS)]
    stop_when_diverged: bool
    kernels: str | dict[str, str] | None = None  # records of older runs lack it
    compile: bool
    float32_matmul_precision: Literal["auto", "highest", "high"]

    @classmethod
    def examples(cls) -> Mapping[str, Any]:
        """Return the defaults, and values of the options whose default is null."""
        numbers = {"micro_batch_size": 8, "max_epochs": 10, "max_steps": 1000, "stop_at": 0.1, "patience": 3}
        return {**trainer_defaults(), **numbers, "kernels": "pytorch"}

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
    time: Natural | None = None
    nodes: Natural = 1
    gpus: Natural | None = None
    processes: Positive | None = None
    cpus: Natural = 8
    memory: NonNegativeFloat | None = None
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


class Precision(NamedTuple):
    """Values of the two options of the trainer in :data:`cab.records.identity.RESOLVED`."""

    precision: str
    float32_matmul_precision: str


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A composed configuration, with every value checked and parsed.

    See configs/run.yaml for the meaning of each key.

    Attributes:
        other_attention: the attention for the slots outside the test, for every pattern.
        tuning: the grid of learning rates from which ``trainer.learning_rate`` was chosen; None for the rate of the
            recipe.
        resolved: the configuration as plain values, of which the hash is.
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
    seed: Annotated[int, Interval(ge=0, le=2**31 - 1)]
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
        check_complete(config, RUN_KEYS)
        plain = checked_options(config, RUN_KEYS, defaults=run_defaults())
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

    def precision_on(self, device: torch.device) -> Precision:
        """Return the precision of a run on a device, with ``auto`` resolved (:data:`cab.records.identity.RESOLVED`).

        On a GPU, ``auto`` is bf16-mixed. In preset `paper` it is float32 with products in TF32, the default of PyTorch
        in the years of the published runs; other engines have no TF32.
        """
        on_gpu, of_paper = device.type == "cuda", self.preset == "paper"
        usual = Precision(
            "bf16-mixed" if on_gpu and not of_paper else "32-true",
            "high" if on_gpu and of_paper and self.engine == DEFAULT_ENGINE else "highest",
        )
        given = Precision(self.trainer.precision, self.trainer.float32_matmul_precision)
        return Precision(*(other if value == AUTO else value for value, other in zip(given, usual, strict=True)))

    def resolved_on(self, device: torch.device) -> dict[str, Any]:
        """Return the configuration as plain values, with the precision on a device, as records store it."""
        return {**self.resolved, "trainer": {**self.resolved["trainer"], **self.precision_on(device)._asdict()}}

    def autocast(self, device: torch.device) -> torch.autocast:
        """Return the context of :func:`cab.recipe.autocast`."""
        from cab.recipe import autocast  # imports torch

        return autocast(self.precision_on(device).precision, device)

    def matmul_precision(self, device: torch.device) -> AbstractContextManager[None]:
        """Return the context of :func:`cab.recipe.matmul_precision`."""
        from cab.recipe import matmul_precision  # imports torch

        return matmul_precision(self.precision_on(device).float32_matmul_precision)

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


RUN_KEYS: Mapping[str, Any] = {
    **{name: kind for name, kind in annotations_of(RunConfig).items() if name != "resolved"},
    **dict.fromkeys(("task", "dataset", "backbone", "attention", "trainer", "logger", "cluster", "data"), Mapping),
    "pattern": str,
    "other_attention": str | dict[str, Any],
    "results_dir": Annotated[str, MinLen(1)],
    "data_root": str | None,
    "retry": list[str],
}
"""The annotation of each key of a composed configuration, before it is parsed."""
