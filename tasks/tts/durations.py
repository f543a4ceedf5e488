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
from cab.records.record import Record, Status, weights_path
from cab.registry.registries import BACKBONES
from cab.runner.folder import load_network
from tasks.tts.data import FRAMES_PER_STEP
from tasks.tts.phonemes import ALIGNED, ARPABET, WRITTEN

_NAMES = {number: name for name, number in WRITTEN.items()}


def load_teacher(record_path: Path) -> TransformerTTS:
    """Load the trained Transformer-TTS of a result.

    Raises:
        ValueError: there is no such result or no weights, or its cross attention has no attention weights.
    """
    record = Record.read(record_path)
    config = record.config
    name = config["backbone"]["name"]
    if record.status is not Status.FINISHED or missing_call(BACKBONES.get(name).cls, StepSynthesizer):
        raise UserError(f"{record_path} is not the result of a finished transformer_tts run")
    spec, pattern = config["attention"], config["pattern"]
    other_attention = (
        config["other_attention"] if isinstance(config["other_attention"], str) else config["other_attention"].get("CC")
    )
    cross = spec["name"] if pattern == "CC" else other_attention
    if cross not in ("vanilla", "eager", "flash"):
        raise UserError(
            f"{record_path}: the cross attention '{cross}' is not softmax attention; use a result "
            "with softmax attention"
        )
    weights = weights_path(record_path.parent, record.hash)
    if not weights.exists():
        raise UserError(f"{record_path}: the weights are missing; run the cell again with force=true")
    options = {name: value for name, value in config["backbone"].items() if name != "name"}
    backbone = cast(
        TransformerTTS,
        build_backbone(name, attention=spec, pattern=pattern, other_attention=config["other_attention"], **options),
    )
    load_network(backbone, weights)
    return backbone.eval()


@torch.no_grad()
def focus(teacher: TransformerTTS, written: Tensor, frames: Tensor) -> Tensor:
    """Return the weights [S, T] of the most focused cross attention head for ``frames`` [1, S, 320]."""
    seen: list[tuple[Attention, Tensor, Tensor]] = []

    def remember(module: Any, inputs: tuple[Tensor, ...]) -> None:
        seen.append((module, inputs[0], inputs[1]))

    slots = [m for m in teacher.modules() if isinstance(m, Attention) and m.pattern is Pattern.CC]
    hooks = [slot.register_forward_pre_hook(remember) for slot in slots]
    try:
        teacher(written, None, frames)
    finally:
        for hook in hooks:
            hook.remove()
    heads = []
    for slot, query, key in seen:
        q = slot.q_proj(query).unflatten(-1, (slot.num_heads, -1)).transpose(1, 2)
        k = slot.k_proj(key).unflatten(-1, (slot.num_heads, -1)).transpose(1, 2)
        heads.append((q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(dim=-1)[0])
    weights = torch.cat(heads)
    return weights[weights.amax(dim=2).mean(dim=1).argmax()]


def attended_durations(weights: Tensor, num_frames: int) -> list[int]:
    """Return the frames of each token, from weights [S, T] of steps of four frames; they sum to ``num_frames``."""
    counts = torch.bincount(weights.argmax(dim=1), minlength=weights.shape[1]) * FRAMES_PER_STEP
    surplus = int(counts.sum()) - num_frames
    last = int(weights[-1].argmax())
    counts[last] -= surplus  # the last step may be partly filled
    return counts.tolist()


def aligned_tokens(written: list[int]) -> list[int]:
    """Convert written tokens to aligned ones: spaces and punctuation become pauses."""
    names = [_NAMES[token] for token in written]
    return [ALIGNED[name] if name in ARPABET else ALIGNED["sp"] for name in names]


def fingerprint(record_path: Path) -> str:
    """Return the hash of the teacher's result."""
    return Record.read(record_path).hash
