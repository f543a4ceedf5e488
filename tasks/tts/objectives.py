"""Training losses and synthesis of TTS networks: from durations of the tokens, or step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cab import Backbone, UserError
from cab.backbone_protocols import DurationSynthesizer, StepSynthesizer
from tasks.tts.data import FRAMES_PER_STEP, Utterance, Utterances

Batch = Mapping[str, Tensor]
STOP_WEIGHT = 5.0  # weight of the single stop step against the many others


class Durations:
    """L1 of frames and squared errors of log duration, pitch and energy (Ren et al. 2021)."""

    def backbone_options(self, splits: Mapping[str, Utterances]) -> dict[str, Any]:
        if not all(utterance.aligned for split in splits.values() for utterance in split.utterances):
            raise UserError(
                "FastSpeech 2 needs phone alignments: put TextGrid/<clip>.TextGrid next to metadata.csv "
                "(Montreal Forced Aligner creates them; LJSpeech's are published), or "
                "derive durations from a trained transformer_tts with task.teacher=RECORD.json"
            )
        training = splits["train"]
        values: dict[str, list[float]] = {"pitch": [], "energy": []}
        for start in range(0, len(training), 64):
            batch = training.__getitems__(list(range(start, min(start + 64, len(training)))))
            for name, extremes in values.items():
                real = batch[name][~batch["aligned_padding"]]
                extremes += [float(real.min()), float(real.max())]
        return {f"{name}_range": (min(x), max(max(x), min(x) + 1e-3)) for name, x in values.items()}

    def loss(self, backbone: Backbone, batch: Batch) -> Tensor:
        padding = batch["aligned_padding"]
        targets = {name: batch[name] for name in ("durations", "pitch", "energy")}
        output = cast(DurationSynthesizer, backbone)(batch["aligned"], padding, **targets)
        real, spoken = ~padding, ~output.mel_padding
        frames = F.l1_loss(output.mel[spoken].float(), batch["mel"][spoken])
        if output.before is not None:
            frames = frames + F.l1_loss(output.before[spoken].float(), batch["mel"][spoken])
        targets["log_duration"] = (batch["durations"] + 1).float().log()
        names = ("log_duration", "pitch", "energy")
        return torch.stack([frames, *(F.mse_loss(getattr(output, x)[real].float(), targets[x][real]) for x in names)])

    def loss_counts(self, batch: Batch) -> Tensor:
        return torch.stack([batch["durations"].sum(), *[(~batch["aligned_padding"]).sum()] * 3])

    def synthesize(self, backbone: Backbone, batch: Batch) -> tuple[Tensor, Tensor]:
        output = cast(DurationSynthesizer, backbone)(batch["aligned"], batch["aligned_padding"])
        return output.mel, (~output.mel_padding).sum(dim=1)

    def target(self, utterances: Utterances, utterance: Utterance) -> np.ndarray:
        return utterances.scale.log_mel(utterances.spoken(utterance))


@dataclass(frozen=True)
class Steps:
    """L1 and squared errors of frames before and after the postnet, cross-entropy of stopping (Li et al. 2019)."""

    max_steps: int
    threshold: float
    num_prompt_steps: int = 0

    def backbone_options(self, splits: Mapping[str, Utterances]) -> dict[str, Any]:  # noqa: ARG002
        return {"frames_per_step": FRAMES_PER_STEP}

    def loss(self, backbone: Backbone, batch: Batch) -> Tensor:
        frames, padding = batch["frames"], batch["frames_padding"]
        output = cast(StepSynthesizer, backbone)(batch["written"], batch["written_padding"], frames, padding)
        real = ~padding
        steps = torch.arange(frames.shape[1], device=frames.device)
        scored = real & (steps >= self.num_prompt_steps)
        loss = frames.new_zeros(())
        for predicted in (output.before, output.after):
            loss = loss + F.l1_loss(predicted[scored].float(), frames[scored])
            loss = loss + F.mse_loss(predicted[scored].float(), frames[scored])
        last = (steps == real.sum(dim=1, keepdim=True) - 1).float()
        weight = torch.full((), STOP_WEIGHT, device=frames.device)
        stop = F.binary_cross_entropy_with_logits(output.stop_logits[real].float(), last[real], pos_weight=weight)
        return torch.stack([loss, stop])

    def loss_counts(self, batch: Batch) -> Tensor:
        real = ~batch["frames_padding"]
        return torch.stack([real[:, self.num_prompt_steps :].sum(), real.sum()])

    def synthesize(self, backbone: Backbone, batch: Batch) -> tuple[Tensor, Tensor]:
        return cast(StepSynthesizer, backbone).synthesize(
            batch["written"],
            batch["written_padding"],
            max_steps=self.max_steps,
            threshold=self.threshold,
            prompt_frames=batch["frames"][:, : self.num_prompt_steps] if self.num_prompt_steps else None,
        )

    def target(self, utterances: Utterances, utterance: Utterance) -> np.ndarray:
        return utterances.grouped(utterance)
