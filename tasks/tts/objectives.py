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
from tasks.means import masked_mean
from tasks.tts.data import FRAMES_PER_STEP, Utterance, Utterances

Batch = Mapping[str, Tensor]
STOP_WEIGHT = 5.0  # weight of the single stop step against the many others


def absolute_errors(predicted: Tensor, target: Tensor) -> Tensor:
    """Return the absolute error of each value, in float32."""
    return F.l1_loss(predicted.float(), target, reduction="none")


def squared_errors(predicted: Tensor, target: Tensor) -> Tensor:
    """Return the squared error of each value, in float32."""
    return F.mse_loss(predicted.float(), target, reduction="none")


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
        padding, mel = batch["aligned_padding"], batch["mel"]
        targets = {name: batch[name] for name in ("durations", "pitch", "energy")}
        output = cast(DurationSynthesizer, backbone)(batch["aligned"], padding, **targets, num_frames=mel.shape[1])
        real, spoken = ~padding, ~output.mel_padding
        frames = masked_mean(absolute_errors(output.mel, mel), spoken)
        if output.before is not None:
            frames = frames + masked_mean(absolute_errors(output.before, mel), spoken)
        targets["log_duration"] = (batch["durations"] + 1).float().log()
        names = ("log_duration", "pitch", "energy")
        others = (masked_mean(squared_errors(getattr(output, x), targets[x]), real) for x in names)
        return torch.stack([frames, *others])

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
            for errors in (absolute_errors, squared_errors):
                loss = loss + masked_mean(errors(predicted, frames), scored)
        last = (steps == real.sum(dim=1, keepdim=True) - 1).float()
        weight = torch.full((), STOP_WEIGHT, device=frames.device)
        logits = output.stop_logits.float()
        stop = F.binary_cross_entropy_with_logits(logits, last, pos_weight=weight, reduction="none")
        return torch.stack([loss, masked_mean(stop, real)])

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
