"""Which modules a network draws the first weights of: all, as the public networks' ``apply`` finds them, but these."""

from __future__ import annotations

from torch import nn

from cab import Attention


def inside_attentions(network: nn.Module) -> set[nn.Module]:
    """All modules of its attentions."""
    return {module for attention in _attentions(network) for module in attention.modules()}


def kept_by_attentions(network: nn.Module) -> set[nn.Module]:
    """Those whose first weights an attention keeps: what its ``own_first_weights`` names."""
    return {attention.get_submodule(name) for attention in _attentions(network) for name in attention.own_first_weights}


def _attentions(network: nn.Module) -> list[Attention]:
    return [module for module in network.modules() if isinstance(module, Attention)]
