"""Adam and AdamW on torch's own arithmetic, without what importing torch's optimiser classes at work costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from cab.config.trainer_config import TrainerConfig
from cab.training import parameter_groups

MOMENTS = ("exp_avg", "exp_avg_sq")


class Adam:
    """Kingma and Ba 2015; decoupled weight decay is Loshchilov and Hutter 2019.

    To the bit what ``torch.optim.Adam`` and ``AdamW`` do (on a GPU by their fused kernel), whose first call imports
    torch._dynamo: as long as torch itself takes. It has what ``torch.amp.GradScaler`` asks of an optimiser.

    Args:
        param_groups: of ``params``, ``lr`` (the peak rate) and ``weight_decay``.
        decoupled: AdamW's decay instead of Adam's.
    """

    def __init__(
        self, param_groups: list[dict[str, Any]], *, betas: tuple[float, float], eps: float, decoupled: bool
    ) -> None:
        self.param_groups = param_groups
        self.betas = betas
        self.eps = eps
        self.decoupled = decoupled
        self.rate = 1.0
        """A factor of every group's peak rate: the schedule's."""
        self._state: dict[nn.Parameter, dict[str, Tensor]] = {}

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            states = [self._state.setdefault(parameter, _no_moments(parameter)) for parameter in parameters]
            is_fused = all(map(has_fused_kernel, parameters))
            adam(
                params=parameters,
                grads=[parameter.grad for parameter in parameters],
                exp_avgs=[state["exp_avg"] for state in states],
                exp_avg_sqs=[state["exp_avg_sq"] for state in states],
                max_exp_avg_sqs=[],
                state_steps=[state["step"] for state in states],
                fused=is_fused,
                foreach=None if not is_fused else False,
                decoupled_weight_decay=self.decoupled,
                amsgrad=False,
                beta1=self.betas[0],
                beta2=self.betas[1],
                lr=group["lr"] * self.rate,
                weight_decay=group["weight_decay"],
                eps=self.eps,
                maximize=False,
            )

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def state_dict(self) -> dict[int, dict[str, Tensor]]:
        """Step and moments of each parameter that has had a gradient, by its place; those of a shard are gathered."""
        places = {parameter: place for place, parameter in enumerate(self.parameters)}
        return {
            places[parameter]: {name: whole(value) for name, value in state.items()}
            for parameter, state in self._state.items()
        }

    def load_state_dict(self, state: Mapping[int, Mapping[str, Tensor]]) -> None:
        parameters = self.parameters
        for place, saved in state.items():
            own = self._state[parameters[place]] = _no_moments(parameters[place])
            own["step"].copy_(saved["step"])
            for name in MOMENTS:
                own[name].copy_(_like(saved[name], own[name]))


def make_optimizer(network: nn.Module, config: TrainerConfig) -> Adam:
    """Weight decay applies to all parameters, or without ``decay_vectors`` to those of two or more dimensions.

    A module's own rules come first (:func:`cab.training.parameter_groups`).
    """
    groups = []
    for group in parameter_groups(network, learning_rate=config.learning_rate, weight_decay=config.weight_decay):
        decays_all = config.decay_vectors or group["weight_decay"] != config.weight_decay
        decayed = [p for p in group["params"] if decays_all or p.ndim > 1]
        vectors = [p for p in group["params"] if not (decays_all or p.ndim > 1)]
        groups += [{**group, "params": decayed}] if decayed else []
        groups += [{**group, "params": vectors, "weight_decay": 0.0}] if vectors else []
    betas = (config.betas[0], config.betas[1])
    return Adam(groups, betas=betas, eps=config.eps, decoupled=config.optimizer == "adamw")


def whole(value: Tensor) -> Tensor:
    """The tensor itself, or all of one that is sharded (every process must ask)."""
    return value.full_tensor().cpu() if hasattr(value, "full_tensor") else value


def has_fused_kernel(parameter: nn.Parameter) -> bool:
    """Whether one kernel updates it: on a GPU, where it is whole; steps are then counted there too."""
    return parameter.device.type == "cuda" and not hasattr(parameter, "device_mesh")


def _no_moments(parameter: nn.Parameter) -> dict[str, Tensor]:
    place = parameter.device if has_fused_kernel(parameter) else "cpu"
    return {"step": torch.tensor(0.0, device=place), **{name: torch.zeros_like(parameter) for name in MOMENTS}}


def _like(value: Tensor, own: Tensor) -> Tensor:
    """``value`` on the device of ``own``, and cut as it is."""
    if not hasattr(own, "device_mesh"):
        return value.to(own.device)
    from torch.distributed.tensor import distribute_tensor

    sharded: Any = own
    return distribute_tensor(value.to(own.device), sharded.device_mesh, sharded.placements)
