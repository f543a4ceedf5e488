"""Durations without forced alignment, from the cross attention of a trained Transformer-TTS (Ren et al. 2019).

As in FastSpeech: among all heads of all cross attentions, the one with the most focused weights is used, and a token
lasts for the number of steps that attend to it most.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from backbones.transformer_tts import TransformerTTS
from cab import Attention, Pattern, UserError, build_backbone
from cab.backbone_protocols import StepSynthesizer, missing_call
from cab.records.files import kept_weights
from cab.records.record import Record, Status
from cab.registry.registries import BACKBONES
from cab.results.normalization import SOFTMAX_VARIANTS
from cab.weights import load_network
from tasks.tts.data import FRAMES_PER_STEP
from tasks.tts.phonemes import ALIGNED, ARPABET, WRITTEN

_NAMES = {number: name for name, number in WRITTEN.items()}


def load_teacher(record_path: Path) -> tuple[Record, TransformerTTS]:
    """Load a result and its trained Transformer-TTS; UserError if it is none with weights and softmax attention."""
    record = Record.read(record_path)
    config = record.config
    name, attention, other = config["backbone"]["name"], config["attention"], config["other_attention"]
    if record.status is not Status.FINISHED or missing_call(BACKBONES.get(name).cls, StepSynthesizer):
        raise UserError(f"{record_path} is not the result of a finished transformer_tts run")
    cross = other if isinstance(other, str) else other.get("CC")
    cross = attention["name"] if config["pattern"] == "CC" else cross
    if cross not in SOFTMAX_VARIANTS:
        raise UserError(f"{record_path}: the cross attention '{cross}' is not softmax attention; use another result")
    options = {name: value for name, value in config["backbone"].items() if name != "name"}
    backbone = build_backbone(name, attention=attention, pattern=config["pattern"], other_attention=other, **options)
    load_network(backbone, kept_weights(record_path))
    return record, cast(TransformerTTS, backbone.eval())


@torch.no_grad()
def focus(teacher: TransformerTTS, written: Tensor, frames: Tensor) -> Tensor:
    """Return the weights [S, T] of the most focused cross attention head for ``frames`` [1, S, 320]."""
    seen: list[tuple[Attention, Tensor, Tensor]] = []

    def remember(module: Any, inputs: tuple[Tensor, ...]) -> None:
        seen.append((module, inputs[0], inputs[1]))

    cross = [m for m in teacher.modules() if isinstance(m, Attention) and m.pattern is Pattern.CC]
    hooks = [module.register_forward_pre_hook(remember) for module in cross]
    try:
        teacher(written, None, frames)
    finally:
        for hook in hooks:
            hook.remove()
    heads = []
    for module, query, key in seen:
        projected = module.q_proj(query), module.k_proj(key)
        q, k = (x.unflatten(-1, (module.num_heads, -1)).transpose(1, 2) for x in projected)
        heads.append((q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(dim=-1)[0])
    weights = torch.cat(heads)
    return weights[weights.amax(dim=2).mean(dim=1).argmax()]


def attended_durations(weights: Tensor, num_frames: int) -> list[int]:
    """Return the frames of each token, from weights [S, T] of steps of four frames; they sum to ``num_frames``."""
    counts = torch.bincount(weights.argmax(dim=1), minlength=weights.shape[1]) * FRAMES_PER_STEP
    counts[weights[-1].argmax()] -= counts.sum() - num_frames  # the last step may be partly filled
    return counts.tolist()


def aligned_tokens(written: list[int]) -> list[int]:
    """Convert written tokens to aligned ones: spaces and punctuation become pauses."""
    names = [_NAMES[token] for token in written]
    return [ALIGNED[name] if name in ARPABET else ALIGNED["sp"] for name in names]
