"""Optimizers of ``torch.optim`` and the learning-rate schedule of a run."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from cab.config.run_config import TrainerConfig
from cab.training import parameter_groups

OptimizerState = dict[int, dict[str, Tensor]]
"""The step and the moments of each parameter, by its position."""


def without_compiler(optimizer: type[torch.optim.Adam]) -> type[torch.optim.Adam]:
    """Return a subclass that does not import ``torch._dynamo``.

    The methods of torch's optimizers are wrapped for ``torch.compile``, and each wrapper imports the compiler: four
    seconds of CPU time and 150 MB per process, half of a whole smoke run. The subclass calls what is wrapped.
    """
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods = {name: inspect.unwrap(getattr(optimizer, name)) for name in names}
    methods["step"] = torch.no_grad()(inspect.unwrap(optimizer.step))
    return type(optimizer.__name__, (optimizer,), methods)


Adam = without_compiler(torch.optim.Adam)
AdamW = without_compiler(torch.optim.AdamW)


def make_optimizer(network: nn.Module, config: TrainerConfig) -> torch.optim.Adam:
    """Build Adam (Kingma and Ba 2015) or AdamW (Loshchilov and Hutter 2019) over the parameters of a network.

    Weight decay applies to all parameters, or without ``decay_vectors`` to those of two or more dimensions. A module's
    own settings come first (:func:`cab.training.parameter_groups`). One fused kernel updates each group, unless
    parameters are sharded.
    """
    groups = []
    for group in parameter_groups(network, learning_rate=config.learning_rate, weight_decay=config.weight_decay):
        decays_all = config.decay_vectors or group["weight_decay"] != config.weight_decay
        decayed = [p for p in group["params"] if decays_all or p.ndim > 1]
        vectors = [p for p in group["params"] if not (decays_all or p.ndim > 1)]
        groups += [{**group, "params": decayed}] if decayed else []
        groups += [{**group, "params": vectors, "weight_decay": 0.0}] if vectors else []
    betas = (config.betas[0], config.betas[1])
    kind = AdamW if config.optimizer == "adamw" else Adam
    return kind(groups, betas=betas, eps=config.eps, fused=not any(map(is_sharded, network.parameters())))


def make_scheduler(optimizer: torch.optim.Adam, config: TrainerConfig, *, steps_per_epoch: int, start: int) -> LambdaLR:
    """Set the learning rates of step ``start``; each call of ``step`` sets those of the next."""
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return LambdaLR(optimizer, config.rate(steps_per_epoch), last_epoch=start - 1)


def parameters_of(optimizer: torch.optim.Adam) -> list[nn.Parameter]:
    """Return the parameters of all groups, in the order of the optimizer's state."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def clip_gradients(optimizer: torch.optim.Adam, maximum: float) -> Tensor:
    """Return the norm of all gradients, after scaling them down to ``maximum`` unless that is 0."""
    if maximum:
        return nn.utils.clip_grad_norm_(parameters_of(optimizer), maximum)
    return nn.utils.get_total_norm([p.grad for p in parameters_of(optimizer) if p.grad is not None])


def optimizer_state(optimizer: torch.optim.Adam) -> OptimizerState:
    """Return the state; that of sharded parameters is sharded."""
    state: OptimizerState = optimizer.state_dict()["state"]
    return state


def load_optimizer_state(optimizer: torch.optim.Adam, state: Mapping[int, Mapping[str, Tensor]]) -> None:
    """Restore what :func:`optimizer_state` returned but learning rates and decays; ValueError for other parameters."""
    parameters = parameters_of(optimizer)
    for position, saved in state.items():
        shapes = {name: value.shape for name, value in saved.items() if name != "step"}
        if shapes != dict.fromkeys(("exp_avg", "exp_avg_sq"), parameters[position].shape):
            raise ValueError(f"optimizer state {position} has the shapes {shapes}")
    placed = {
        position: {name: x if name == "step" else _placed_like(parameters[position], x) for name, x in moments.items()}
        for position, moments in state.items()
    }
    optimizer.load_state_dict({**optimizer.state_dict(), "state": placed})


def whole_state_dict(network: nn.Module) -> dict[str, Tensor]:
    """Return the state dict with shards gathered; every process must call this."""
    return {name: whole(x) for name, x in network.state_dict().items()}


def load_network_state(network: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a state dict, whole or sharded as the network is."""
    current = network.state_dict()
    network.load_state_dict({name: _placed_like(current[name], x) for name, x in state.items()})


def whole(x: Tensor) -> Tensor:
    """Return the tensor itself, or a sharded tensor gathered on the CPU (every process must call this)."""
    return x.full_tensor().cpu() if is_sharded(x) else x  # type: ignore[attr-defined]


def is_sharded(x: Tensor) -> bool:
    """Return whether each process has a part of the tensor."""
    return hasattr(x, "device_mesh")


def as_shard(x: Tensor, like: Tensor) -> Tensor:
    """Return a tensor sharded as ``like``, whose part in this process is ``x``."""
    from torch.distributed.tensor import DTensor

    sharded: Any = like
    options: Any = {"shape": like.shape, "stride": like.stride(), "run_check": False}
    return DTensor.from_local(x.to(like.device), sharded.device_mesh, sharded.placements, **options)


def _placed_like(parameter: Tensor, x: Tensor) -> Tensor:
    """Return ``x`` on the device of a parameter, sharded as it is."""
    if not is_sharded(parameter) or is_sharded(x):
        return x.to(parameter.device)
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = parameter
    return distribute_tensor(x.to(parameter.device), sharded.device_mesh, sharded.placements)
