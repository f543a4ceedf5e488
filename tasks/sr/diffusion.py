"""Diffusion of SR3: noise schedule, noisy training images, and sampling (Saharia et al. 2021, section 2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cab.training import on_device_of

PUBLISHED_STEPS = 2000
BETAS = (1e-6, 1e-2)

Denoise = Callable[[Tensor, Tensor], Tensor]


class Diffusion:
    """A linear schedule of ``steps`` noise levels.

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
