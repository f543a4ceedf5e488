"""The checked ``cluster`` group of a configuration: where the cells run."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from cab.errors import unknown_name
from cab.registry.options import (
    Limit,
    Natural,
    Positive,
    PositiveFloat,
    annotations_of,
    check_names,
    check_types,
    converted,
)

Workers = Annotated[int, Limit("from 1 to 256", lambda value: 1 <= value <= 256)]


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """``cluster=none``: run the cells one after another in this process."""

    def __post_init__(self) -> None:
        usual = {name: parameter.default for name, parameter in inspect.signature(type(self)).parameters.items()}
        check_types(vars(self), annotations_of(type(self)), usual, "cluster")


@dataclass(frozen=True, kw_only=True)
class LocalConfig(ClusterConfig):
    """``cluster=local``; see configs/cluster/local.yaml for the meaning of each option."""

    workers: Workers | None = None
    workers_per_gpu: Workers = 1


@dataclass(frozen=True, kw_only=True)
class SlurmConfig(ClusterConfig):
    """``cluster=slurm``; see configs/cluster/slurm.yaml for the meaning of each option."""

    partition: str | None = None
    time: Positive = 1440
    gpus: Natural = 1
    processes: Positive | None = None
    cpus: Positive = 8
    memory: PositiveFloat = 64
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
    """Return the cluster for a name and its options.

    Raises:
        UserError: the cluster is unknown, or an option is unknown or not of its annotation.
    """
    options = dict(group)
    name = options.pop("name")
    if name not in CLUSTERS:
        raise unknown_name("cluster", name, CLUSTERS)
    kinds = annotations_of(CLUSTERS[name])
    check_names(options, kinds, "cluster")
    return CLUSTERS[name](**converted(options, kinds))
