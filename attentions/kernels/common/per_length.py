"""Computation per sequence length, for methods that depend on the length of a sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from cab.padding import lengths


def each_length(function: Callable[..., Tensor], heads: Sequence[Tensor], mask: Tensor | None) -> Tensor:
    """Return ``function(*heads)``, called once per sequence length, without the padding on the right.

    This is for methods that depend on the length of a sequence. ``heads`` are [B, ..., N, E] and ``mask`` is [B, N].
    Padded outputs are zero.
    """
    if mask is None:
        return function(*heads)
    counts, full = lengths(heads[0], mask), mask.shape[1]
    outputs, rows = [], []
    for length in counts.unique().tolist():
        of_length = (counts == length).nonzero()[:, 0]
        found = [x[of_length][..., :length, :] for x in heads]
        output = function(*found) if length else found[0]
        outputs.append(F.pad(output, (0, 0, 0, full - length)))
        rows.append(of_length)
    return torch.cat(outputs)[torch.cat(rows).argsort()]
