"""Negative log-likelihoods of tokens, for vocabularies of any size."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from cab import Backbone
from cab.attention import DecodeState

LARGE = 2**26
"""Number of logits (256 MiB in float32) above which a backbone that supports it computes losses in chunks."""


def token_losses(backbone: Backbone, vocab_size: int, targets: Tensor, *inputs: Any, **more: Any) -> Tensor:
    """Return the loss in nats of each of ``targets`` under ``backbone(*inputs, **more)``, in the targets' shape."""
    if _gives_losses(backbone, vocab_size, targets):
        losses: Tensor = backbone(*inputs, **more, targets=targets)
        return losses
    return _losses(backbone(*inputs, **more), targets)


def recurrent_token_losses(
    backbone: Backbone, vocab_size: int, targets: Tensor, *inputs: Any, mems: DecodeState
) -> tuple[Tensor, DecodeState]:
    """Compute :func:`token_losses` after ``mems``; also return the updated memory."""
    if _gives_losses(backbone, vocab_size, targets):
        losses: tuple[Tensor, DecodeState] = backbone(*inputs, mems=mems, targets=targets)
        return losses
    logits, mems = backbone(*inputs, mems=mems)
    return _losses(logits, targets), mems


def _gives_losses(backbone: Backbone, vocab_size: int, targets: Tensor) -> bool:
    return targets.numel() * vocab_size > LARGE and backbone.gives_losses


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    losses = F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), reduction="none")
    return losses.view_as(targets)
