"""Sequences of different lengths: an attention on packed sequences, and on the same sequences padded to the longest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from cab.efficiency.setting import Setting
from cab.efficiency.subjects import AttentionSubject
from cab.efficiency.workload import Inputs, Workload, forward, forward_backward
from cab.patterns import Pattern

PHASES = ("forward", "forward+backward")

SHORT = 16
"""Ratio of the longest length to the others in ``one-long``."""

SPREAD, MEDIAN = 1.0, 8
"""``log-normal``: standard deviation of the logarithm, and ratio of the longest permitted length to the median."""


def sequence_lengths(distribution: str, longest: int, total: int) -> list[int]:
    """Return lengths from 1 to ``longest`` whose sum is ``total``, the same in every call; the last one is cut.

    Args:
        distribution: ``uniform``, ``log-normal`` (many short and few long sequences, as in conversations) or
            ``one-long`` (one of the longest length, all others a sixteenth of it).
        longest: the largest length.
        total: number of tokens.
    """
    random = np.random.default_rng(0)
    lengths: list[int] = []
    while (left := total - sum(lengths)) > 0:
        if distribution == "uniform":
            length = int(random.integers(1, longest + 1))
        elif distribution == "log-normal":
            length = round(longest / MEDIAN * random.lognormal(0.0, SPREAD))
        else:
            length = longest // SHORT if lengths else longest
        lengths.append(min(max(1, length), longest, left))
    return lengths


def packed_inputs(pattern: Pattern, length: int, setting: Setting, *, requires_grad: bool = False) -> Inputs:
    """Return packed sequences [T, D] of T = batch size x length tokens; sources have the lengths of the targets."""
    total = setting.batch_size * length
    lengths = torch.tensor([0, *sequence_lengths(setting.packed, length, total)], device=setting.device)

    def sequences() -> Tensor:
        x = torch.randn(total, setting.embed_dim, device=setting.device)
        return x.to(setting.torch_dtype).requires_grad_(requires_grad)

    inputs = {"query": sequences(), "query_cu_seqlens": lengths.cumsum(0)}
    if pattern.is_cross:
        inputs["key"] = inputs["value"] = sequences()
        inputs["key_cu_seqlens"] = inputs["query_cu_seqlens"]
    return inputs


def padded_inputs(pattern: Pattern, length: int, setting: Setting, *, requires_grad: bool = False) -> Inputs:
    """Return the sequences of :func:`packed_inputs` as one batch with padding masks."""
    packed = packed_inputs(pattern, length, setting)
    lengths = packed["query_cu_seqlens"].diff()
    mask = torch.arange(int(lengths.max()), device=setting.device) >= lengths[:, None]

    def padded(x: Tensor) -> Tensor:
        return pad_sequence(x.split(lengths.tolist()), batch_first=True).requires_grad_(requires_grad)

    inputs = {"query": padded(packed["query"]), "query_padding_mask": mask}
    if pattern.is_cross:
        inputs["key"] = inputs["value"] = padded(packed["key"])
        inputs["key_padding_mask"] = mask
    return inputs


@dataclass(frozen=True)
class SequencesSubject:
    """An attention on packed sequences, or padded to the longest."""

    attention: AttentionSubject
    kind: str = "attention"

    @property
    def label(self) -> str:
        return self.attention.label if self.kind == "attention" else padded_label(self.attention.label)

    @property
    def complexity(self) -> str:
        return self.attention.complexity

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        return self.attention.patterns

    @property
    def phases(self) -> Mapping[str, Callable[[nn.Module, Pattern, int, Setting], Workload]]:
        """The workload of each phase."""
        make: Any = packed_inputs if self.kind == "attention" else padded_inputs
        return {"forward": partial(forward, make=make), "forward+backward": partial(forward_backward, make=make)}

    def build(self, pattern: Pattern, setting: Setting, *, dropout: float = 0.0) -> nn.Module:
        return self.attention.build(pattern, setting, dropout=dropout)


def padded_label(label: str) -> str:
    """Return the label of an attention on padded sequences."""
    return f"{label}@padded"
