"""SR protocol: learn to denoise, sample the high resolution, score it in 8-bit RGB."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cab import Backbone, UserError, register_task
from cab.backbone_protocols import Denoiser
from cab.metric import Metric, mean_over_batches, mean_scores
from cab.registry.options import Positive
from cab.task import Batches
from cab.training import on_device_of
from tasks.files import warn_of_repeats
from tasks.pictures import draw_grid, draw_image
from tasks.source import OwnTask
from tasks.sr.data import ImagePairs, list_images, make_pairs, read_images, read_pairs, render

PUBLISHED_IMAGES = 100
IMAGE_METRICS = {"psnr": "dB", "ssim": ""}
NUM_IMAGES = {"train": 2000, "validation": 32, "test": 64}


@register_task("sr", paper="Saharia et al. 2021", datasets="ffhq synthetic", backbones={"sr3": "NS"})
@dataclass(kw_only=True, eq=False)
class SR(OwnTask):
    """Super-resolution of images from ``low_resolution`` to ``high_resolution`` pixels per side.

    Args:
        dataset: ffhq (trained on FFHQ, scored on CelebA-HQ), synthetic, or with ``source`` any name.
        source: folder with images of your own, of any size: their centers are scaled to ``high_resolution``.
        low_resolution, high_resolution: sides of the images.
        num_held_out: score on this many of the last FFHQ images, excluded from training, instead of CelebA-HQ.
        diffusion_steps: noise levels of training and sampling; 2,000 as published.
        step_of: sample a training step of the noise schedule per ``image``, or per ``batch``, as in the public
            implementation; all images of a batch then have similar noise levels.
        scored_images: images of the test split that are sampled and scored: ``all``, or ``first_100`` as published.
        evaluation_batch_size: images sampled at once.
    """

    packages: ClassVar[Mapping[str, str]] = {"skimage": "vision", "PIL": "vision"}
    required_protocols: ClassVar = (Denoiser,)

    low_resolution: int = 16
    high_resolution: int = 128
    num_held_out: int = 0
    diffusion_steps: Positive = 2000
    step_of: Literal["image", "batch"] = "image"
    scored_images: Literal["all", "first_100"] = "all"
    evaluation_batch_size: Positive = 25

    @property
    def config_variant(self) -> str:
        return f"held out {self.num_held_out}" if self.num_held_out else ""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return tuple(Metric(name, unit, higher_is_better=True) for name, unit in IMAGE_METRICS.items())

    def check(self) -> None:
        super().check()
        if not 4 <= self.low_resolution < self.high_resolution or self.high_resolution % self.low_resolution:
            raise UserError(
                "task.high_resolution must be a multiple of task.low_resolution, which is at least 4, got "
                f"{self.high_resolution} and {self.low_resolution}"
            )
        if self.num_held_out and self.dataset != "ffhq":
            raise UserError(f"task.num_held_out applies to ffhq: the images of {self.dataset} have separate splits")

    def setup(self, data_root: Path | None) -> None:
        sizes = {"low": self.low_resolution, "high": self.high_resolution}
        self.diffusion = Diffusion(self.diffusion_steps)
        self._about: dict[str, Any] = {"generator": 2, "images": NUM_IMAGES, **sizes}
        counts, folder = NUM_IMAGES, self.own_folder()
        if folder is not None:
            parts = self.parts_of([str(path.relative_to(folder)) for path in list_images(folder)], "image")
            pairs, self._about = read_images(folder, [*itertools.chain(*parts.values())], **sizes)
            counts = {name: len(part) for name, part in parts.items()}
        elif self.dataset == "synthetic":
            pairs = make_pairs(sum(NUM_IMAGES.values()), render, **sizes)
        if self.dataset != "ffhq":
            bounds = itertools.pairwise(itertools.accumulate(counts.values(), initial=0))
            self.splits = {
                name: pairs.subset(*bound, mirror=folder is not None and name == "train")
                for name, bound in zip(counts, bounds, strict=True)
            }
            warn_of_repeats("images", {name: pairs.contents for name, pairs in self.splits.items()})
            return
        pairs, about = read_pairs("ffhq", data_root, **sizes)
        rest = len(pairs) - self.num_held_out
        if rest < 1:
            raise UserError(f"task.num_held_out {self.num_held_out} leaves none of the {len(pairs)} images to train on")
        held_out: tuple[ImagePairs, dict[str, Any]] = pairs.subset(rest, len(pairs), mirror=False), {}
        test, about_test = held_out if self.num_held_out else read_pairs("celebahq", data_root, **sizes)
        self.splits = {"train": pairs.subset(0, rest, mirror=True), "validation": test, "test": test}
        self._about = {"ffhq": about, "celebahq": about_test}
        warn_of_repeats("images", {split: self.splits[split].contents for split in ("train", "test")})

    def fingerprint(self) -> dict[str, Any]:
        return self._about

    def backbone_options(self, backbone: str) -> dict[str, Any]:  # noqa: ARG002
        return {"image_size": self.high_resolution}

    def loss(self, backbone: Backbone, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the mean absolute error of the predicted noise."""
        noisy, noise, level = self.diffusion.noisy(batch["truth"], one_step=self.step_of == "batch")
        return F.l1_loss(backbone(torch.cat([batch["blurred"], noisy], dim=1), level), noise)

    def validate(self, backbone: Backbone, batches: Batches) -> float:
        """Return the loss on the validation split, with fixed noise."""

        def score(batch: Mapping[str, Tensor]) -> tuple[float, int]:
            return self.loss(backbone, batch).item() * len(batch["truth"]), len(batch["truth"])

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return mean_over_batches(batches.map(self.splits["validation"], self.evaluation_batch_size, score))

    def sample(self, backbone: Backbone, batch: Mapping[str, Tensor]) -> Tensor:
        """Sample high-resolution images [B, 3, H, W] in [-1, 1]."""
        blurred = batch["blurred"]

        def denoise(noisy: Tensor, level: Tensor) -> Tensor:
            return backbone(torch.cat([blurred, noisy], dim=1), level)

        return self.diffusion.sample(denoise, blurred, batch["index"].tolist())

    def evaluate(self, backbone: Backbone, batches: Batches) -> dict[str, float]:
        def score(batch: Mapping[str, Tensor]) -> list[dict[str, float]]:
            return [*map(similarity, to_uint8(self.sample(backbone, batch)), to_uint8(batch["truth"]))]

        rows = batches.map(self._scored, self.evaluation_batch_size, score)
        return mean_scores([*itertools.chain.from_iterable(rows)])

    @property
    def _scored(self) -> ImagePairs:
        test: ImagePairs = self.splits[self.test_split]
        return test if self.scored_images == "all" else test.subset(0, min(PUBLISHED_IMAGES, len(test)), mirror=False)

    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the scores of the upsampled low resolution (bicubic)."""
        scored = self._scored
        pairs = zip(scored.blurred[: self.limit], scored.truth[: self.limit], strict=True)
        return {"bicubic": mean_scores([similarity(*pair) for pair in pairs])}

    def save_plots(self, backbone: Backbone, batches: Batches, folder: Path) -> None:
        batch = batches.first(self._scored, 6)
        low = f"{self.low_resolution} pixels, bicubic"
        kinds = {low: batch["blurred"], "sampled": self.sample(backbone, batch), "truth": batch["truth"]}
        columns = [(name, [*to_uint8(images)]) for name, images in kinds.items()]
        draw_grid(columns, draw_image, folder / "images.png")


def to_uint8(images: Tensor) -> np.ndarray:
    """Convert [B, 3, H, W] in [-1, 1] to [B, H, W, 3] uint8."""
    scaled = (images.float().clamp(-1.0, 1.0) + 1.0) * 127.5
    return scaled.round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()


def similarity(image: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Return PSNR in dB and SSIM (Gaussian window of 11, sigma 1.5) of uint8 RGB images [H, W, 3]."""
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    ssim = structural_similarity(
        truth, image, data_range=255, channel_axis=2, gaussian_weights=True, sigma=1.5, use_sample_covariance=False
    )
    is_equal = np.array_equal(image, truth)
    psnr = float("inf") if is_equal else peak_signal_noise_ratio(truth, image, data_range=255)
    return {"psnr": float(psnr), "ssim": float(ssim)}


PUBLISHED_STEPS = 2000
BETAS = (1e-6, 1e-2)  # first and last of the published schedule

Denoise = Callable[[Tensor, Tensor], Tensor]


class Diffusion:
    """A linear schedule of ``steps`` noise levels (Saharia et al. 2021, section 2).

    2,000 steps are the published schedule, from 1e-6 to 1e-2. With fewer steps the betas are scaled up proportionally,
    so that their sum, and approximately log(alpha-bar), are unchanged at the last level.
    """

    def __init__(self, steps: int) -> None:
        scale = PUBLISHED_STEPS / steps
        betas = torch.linspace(BETAS[0] * scale, min(BETAS[1] * scale, 0.999), steps, dtype=torch.float64)
        alphas = 1.0 - betas
        alpha_bar = torch.cat([torch.ones(1, dtype=torch.float64), alphas.cumprod(dim=0)])
        previous, current = alpha_bar[:-1], alpha_bar[1:]
        self.steps = steps
        self.levels = alpha_bar.sqrt()
        """sqrt(alpha-bar) before the first step and after each: [steps + 1]."""
        self.variance = (betas * (1.0 - previous) / (1.0 - current)).clamp(min=1e-20)
        self.weight_of_image = betas * previous.sqrt() / (1.0 - current)
        self.weight_of_noisy = (1.0 - previous) * alphas.sqrt() / (1.0 - current)

    def noisy(self, image: Tensor, *, one_step: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``image`` [B, C, H, W] with noise, the noise, and the noise level [B], sampled between two steps.

        The noise is drawn on the device of the image, so it depends on the kind of device; the levels do not.


        ``one_step``: use the same two steps for all images.
        """
        step = torch.randint(1, self.steps + 1, (1 if one_step else len(image),))
        high, low = self.levels[step - 1], self.levels[step]
        level = (low + (high - low) * torch.rand(len(image), dtype=torch.float64)).float()
        level, noise = on_device_of(image, level), torch.randn(image.shape, device=image.device)
        broad = level[:, None, None, None]
        return broad * image + (1.0 - broad.square()).sqrt() * noise, noise, level

    def sample(self, denoise: Denoise, like: Tensor, seeds: Sequence[int]) -> Tensor:
        """Sample images, from the noisiest level down (ancestral sampling).

        Args:
            denoise: maps noisy images and noise levels [B] to the predicted noise.
            like: [B, C, H, W], with the shape and device of the images.
            seeds: one per image, so that its noise does not depend on the batch.
        """
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]

        def draw() -> Tensor:
            return on_device_of(like, torch.stack([torch.randn(like.shape[1:], generator=g) for g in generators]))

        x = draw()
        for step in reversed(range(self.steps)):
            level = float(self.levels[step + 1])
            noise = denoise(x, torch.full((len(x),), level, device=x.device))
            image = ((x - (1.0 - level**2) ** 0.5 * noise) / level).clamp(-1.0, 1.0)
            x = float(self.weight_of_image[step]) * image + float(self.weight_of_noisy[step]) * x
            if step > 0:
                x = x + float(self.variance[step]) ** 0.5 * draw()
        return x
