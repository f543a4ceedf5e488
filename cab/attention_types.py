"""Types in the interface of attentions, and functions on the state of decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor

from cab.patterns import Pattern

DecodeState = dict[str, Tensor]
"""What decoding has read so far: named tensors, each with the batch as its first dimension."""


@dataclass(frozen=True)
class LayerPosition:
    """Position of an attention among the layers of its kind: number ``index`` of ``num_layers``."""

    index: int
    num_layers: int


SINGLE_LAYER = LayerPosition(0, 1)
"""The position of an attention that is in no network."""


@dataclass(frozen=True)
class SoftmaxLimit:
    """Sets of options that approach softmax attention, the last within ``tolerance`` (relative error, RMS)."""

    options: tuple[Mapping[str, Any], ...]
    tolerance: float = 1e-5


class CommonArguments(TypedDict):
    """The constructor arguments that all attentions share, for ``**common: Unpack[CommonArguments]``."""

    pattern: Pattern | str
    embed_dim: int
    num_heads: int
    dropout: NotRequired[float]


def reorder_state(state: DecodeState, index: Tensor) -> DecodeState:
    """Return the state of sequences ``index`` [B'], as in beam search: any may be dropped or repeated."""
    return {name: tensor.index_select(0, index) for name, tensor in state.items()}


def empty_prefix(batch_size: int, embed_dim: int, like: Tensor) -> DecodeState:
    """Return the state before the first token of an attention without ``decode``: an empty prefix."""
    empty = like.new_empty(batch_size, 0, embed_dim)
    return {"query": empty, "query_padding": empty.new_zeros(batch_size, 0, dtype=torch.bool)}
