"""Third-party implementations, and modules that wrap third-party kernels and layers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from cab.efficiency.setting import Setting
from cab.efficiency.subjects import AttentionSubject, Projections
from cab.errors import UserError
from cab.patterns import Pattern

Options = Mapping[str, Any]
Make = Callable[[Pattern, int, int, Options], nn.Module]
Core = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Peer:
    """A third-party implementation that pip can install.

    Args: attention: the registered attention to compare with. package: package name for pip. module: module name for
            Python. patterns: patterns in which its results are correct. make: builds it from pattern, width, heads and
            the attention's options; raises UserError for unsupported options, as does the built module for unsupported
            lengths (status ``unsupported``). needs_cuda: whether it requires a GPU. form: label in the table if a
            package has several implementations of a method.
    """

    attention: str
    package: str
    module: str
    patterns: tuple[Pattern, ...]
    make: Make
    needs_cuda: bool = False
    form: str = ""

    @property
    def name(self) -> str:
        """Label in the table."""
        return self.form or self.package

    @property
    def is_installed(self) -> bool:
        """Whether the package is installed."""
        return find_spec(self.module) is not None

    @property
    def exists_here(self) -> bool:
        """Whether the machine has the required device."""
        return torch.cuda.is_available() or not self.needs_cuda


@dataclass(frozen=True)
class PeerSubject:
    """A third-party implementation, built for the options of an attention."""

    peer: Peer
    ours: AttentionSubject
    kind: str = "third_party"

    @property
    def label(self) -> str:
        return f"{self.ours.label}@{self.peer.name}"

    @property
    def peer_of(self) -> str:
        """Label of the attention to compare with."""
        return self.ours.label

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        return tuple(pattern for pattern in self.peer.patterns if pattern in self.ours.patterns)

    def build(self, pattern: Pattern, setting: Setting, *, dropout: float = 0.0) -> nn.Module:  # noqa: ARG002
        with contextlib.redirect_stdout(sys.stderr):  # some packages print on import; stdout is for tables
            return self.peer.make(pattern, setting.embed_dim, setting.num_heads, self.ours.all_options(pattern))


class Projected(Projections):
    """``core(q, k, v)`` on heads [B, H, N, E] between the four linear maps."""

    core: Core

    def __init__(self, core: Core, embed_dim: int, num_heads: int) -> None:
        super().__init__(embed_dim)
        self.num_heads = num_heads
        self.core = core

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None) -> Tensor:
        key, value = (query if x is None else x for x in (key, value))
        q, k, v = (
            linear(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for linear, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        return self.out_proj(self.core(q, k, v).transpose(1, 2).flatten(-2))


class Whole(nn.Module):
    """A module with its own projections, called as ``call(module, query, key, value)``."""

    q_proj = k_proj = v_proj = True

    def __init__(self, module: nn.Module, call: Callable[[Any, Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.module = module
        self.call = call

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None) -> Tensor:
        key, value = (query if x is None else x for x in (key, value))
        return self.call(self.module, query, key, value)


class Other(nn.Module):
    """A self attention module without projections of query, key, value and output."""

    def __init__(self, module: nn.Module, call: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.module = module
        self.call = call

    def forward(self, query: Tensor) -> Tensor:
        return self.call(self.module, query)


class WithOutput(nn.Module):
    """A layer of transformers with the output map, which belongs to another class there."""

    def __init__(self, layer: nn.Module, embed_dim: int) -> None:
        super().__init__()
        self.layer = layer
        self.out_proj = nn.Linear(embed_dim, embed_dim)


def require(options: Options, **values: object) -> None:
    """Raise UserError for an option value outside the supported ones: a value, or several in a tuple."""
    for name, allowed in values.items():
        if options[name] not in (allowed if isinstance(allowed, tuple) else (allowed,)):
            raise UserError(f"{name}={options[name]} is not supported")


def require_multiple(length: int, size: int) -> None:
    """Raise UserError for an unsupported length."""
    if length % size:
        raise UserError(f"the length must be a multiple of {size}, got {length}")
