"""Modules whose cost is known, in the place of attentions."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from cab.efficiency.setting import Setting
from cab.patterns import Pattern


class Scores(nn.Module):
    """Writes the B x N x N products of its input and returns their row sums, as wide as the input."""

    def __init__(self, log: list[str] | None = None, label: str = "") -> None:
        super().__init__()
        self.log, self.label = log, label
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, query: Tensor) -> Tensor:
        if self.log is not None:
            self.log.append(self.label)
        self.last = query.requires_grad, self.training, torch.is_grad_enabled(), query.dtype
        return (query @ query.mT).sum(dim=2, keepdim=True).expand_as(query) * self.weight.sum()


@dataclass(frozen=True)
class Fake:
    label: str
    module: nn.Module
    patterns: tuple[Pattern, ...] = tuple(Pattern)
    kind: str = "attention"
    compared_with: str = ""
    backend: str = ""
    built: list[tuple[Pattern, float]] = field(default_factory=list)

    def build(self, pattern: Pattern, setting: Setting, *, dropout: float = 0.0) -> nn.Module:  # noqa: ARG002
        self.built.append((pattern, dropout))
        return self.module


class Broken(nn.Module):
    """Raises at its ``call``-th call."""

    def __init__(self, error: Exception, call: int) -> None:
        super().__init__()
        self.error, self.left = error, call

    def forward(self, query: Tensor) -> Tensor:
        self.left -= 1
        if self.left <= 0:
            raise self.error
        return query
