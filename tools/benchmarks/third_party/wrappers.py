"""Modules around third-party kernels and layers, called as ``module(query)`` or ``module(query, key, value)``."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from cab.efficiency.subjects import Projections
from cab.errors import UserError

Core = Callable[[Tensor, Tensor, Tensor], Tensor]


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


def first_output(module: nn.Module, x: Tensor, *_: Tensor) -> Tensor:
    """Call a self attention, which may return a tuple that begins with the output."""
    output = module(x)
    return output[0] if isinstance(output, tuple) else output


class Other(nn.Module):
    """A module without projections of query, key, value and output, called as ``call(module, query, key, value)``.

    Args:
        multiple_of: the length must be a multiple of it.
    """

    def __init__(self, module: nn.Module, call: Callable[..., Tensor] = first_output, *, multiple_of: int = 1) -> None:
        super().__init__()
        self.module, self.call, self.multiple_of = module, call, multiple_of

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None) -> Tensor:
        require_multiple(query.shape[1], self.multiple_of)
        key, value = (query if x is None else x for x in (key, value))
        return self.call(self.module, query, key, value)


class Whole(Other):
    """A module with its own projections."""

    q_proj = k_proj = v_proj = True


def with_output(layer: nn.Module, embed_dim: int) -> nn.ModuleDict:
    """Return a layer of transformers and the output map, which belongs to another class there."""
    return nn.ModuleDict({"layer": layer, "out_proj": nn.Linear(embed_dim, embed_dim)})


def require(**options: tuple[object, object]) -> None:
    """Raise UserError for an option whose value is not the supported one: ``require(name=(value, supported))``."""
    for name, (value, supported) in options.items():
        if value != supported:
            raise UserError(f"{name}={value} is not supported")


def require_multiple(length: int, size: int) -> None:
    """Raise UserError for an unsupported length."""
    if length % size:
        raise UserError(f"the length must be a multiple of {size}, got {length}")
