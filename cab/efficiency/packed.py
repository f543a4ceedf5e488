"""Sequences of different lengths: an attention on packed sequences, and on the same sequences padded to the longest."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from cab.efficiency.setting import Setting
from cab.efficiency.subjects import AttentionSubject
from cab.efficiency.workload import Inputs, forward, forward_backward, make_inputs
from cab.patterns import Pattern

PACKED_PHASES = ("forward", "forward+backward")


def sequence_lengths(distribution: str, longest: int, total: int) -> list[int]:
    """Return lengths from 1 to ``longest`` whose sum is ``total``, the same in every call; the last one is cut.

    Args:
        distribution: ``uniform``, ``log-normal`` (many short and few long sequences, as in conversations) or
            ``one-long`` (one of the longest length, all others a sixteenth of it).
        total: number of tokens.
    """
    random = np.random.default_rng(0)
    lengths: list[int] = []
    while (missing := total - sum(lengths)) > 0:
        if distribution == "uniform":
            length = int(random.integers(1, longest + 1))
        elif distribution == "log-normal":
            length = round(longest / 8 * random.lognormal())  # of median longest / 8
        else:
            length = longest // 16 if lengths else longest
        lengths.append(min(max(1, length), longest, missing))
    return lengths


def packed_inputs(pattern: Pattern, length: int, setting: Setting, *, requires_grad: bool = False) -> Inputs:
    """Return packed sequences [T, D] of T = batch size x length tokens; sources have the lengths of the targets."""
    lengths = sequence_lengths(setting.packed, length, setting.batch_size * length)
    ends = torch.tensor([0, *lengths], device=setting.device).cumsum(0)
    inputs: Inputs = {}
    for name, x in make_inputs(pattern, length, setting).items():
        if name == "value":
            inputs[name] = inputs["key"]
        else:
            inputs[name] = x.flatten(0, 1).requires_grad_(requires_grad)
            inputs[f"{name}_cu_seqlens"] = ends
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


def packed_and_padded(subject: AttentionSubject) -> Iterator[AttentionSubject]:
    """Yield an attention on packed sequences, and on the same sequences padded to the longest."""
    kinds = {"attention": (subject.label, packed_inputs), "padded": (padded_label(subject.label), padded_inputs)}
    for kind, (label, make) in kinds.items():
        phases = {"forward": partial(forward, make=make), "forward+backward": partial(forward_backward, make=make)}
        yield dataclasses.replace(subject, label=label, kind=kind, phases=phases)


def padded_label(label: str) -> str:
    """Return the label of an attention on padded sequences."""
    return f"{label}@padded"
