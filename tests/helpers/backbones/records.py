"""One record per kind of network: small options, and the inputs of a batch of three rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cab import Backbone, build_backbone
from tests.helpers.backbones.language_models import SMALL, tokens

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Record:
    """A network that the properties of tests/backbones/test_backbones.py are tested of."""

    pattern: str
    options: dict[str, Any]
    inputs: Callable[[], Inputs]

    def build(self, name: str, **options: Any) -> Backbone:
        return build_backbone(name, pattern=self.pattern, **{**self.options, **options}).eval()


def lengths(*counts: int) -> Tensor:
    """Return the mask [3, N] of rows that are padded on the right."""
    return torch.arange(max(counts)) >= torch.tensor(counts).unsqueeze(1)


def spoken_tokens() -> Inputs:
    mask = lengths(9, 4, 7)
    durations = torch.randint(0, 5, (3, 9)) + (torch.arange(9) == 0)
    given = {"durations": durations, "pitch": torch.randn(3, 9), "energy": torch.randn(3, 9)}
    return {"tokens": torch.randint(1, 19, (3, 9)), "padding_mask": mask, **given}


def spoken_steps() -> Inputs:
    given = {"frames": torch.randn(3, 9, 6), "frame_padding": lengths(7, 9, 4)}
    return {"tokens": torch.randint(0, 19, (3, 8)), "padding_mask": lengths(8, 5, 3), **given}


def series() -> Inputs:
    past, time = torch.randn(3, 50, 3).cumsum(dim=1), torch.rand(3, 57, 4) - 0.5
    return {"past": past, "past_time": time[:, :50], "known": past[:, -9:], "decoder_time": time[:, 41:]}


TTS: dict[str, Any] = {"num_tokens": 19, "embed_dim": 16, "num_heads": 2, "ffn_dim": 24}
STEPS: dict[str, Any] = {"num_mels": 3, "frames_per_step": 2, "encoder_layers": 2, "decoder_layers": 2}
STEPS |= {"encoder_convs": 2, "prenet_dim": 8, "postnet_dim": 16, "prenet_dropout": 0.0}
FRAMES: dict[str, Any] = {"kernel_size": 5, "num_mels": 7, "encoder_layers": 2, "decoder_layers": 1, "num_bins": 12}
POINTS: dict[str, Any] = {"embed_dim": 12, "num_heads": 2, "encoder_layers": 2, "decoder_layers": 2}
POINTS |= {"first_samples": 20, "num_proxies": 11, "num_queries": 9}
POINTS |= {"num_neighbors": 3, "num_proxy_neighbors": 4, "num_global": 16}
PIXELS: dict[str, Any] = {"image_size": 8, "base_channels": 8, "channel_multipliers": [1, 2]}
PIXELS |= {"attention_resolutions": [4], "num_blocks": 1, "norm_groups": 4}
FORECAST: dict[str, Any] = {"channels": 3, "embed_dim": 16, "num_heads": 2, "ffn_dim": 32, "dropout": 0.0}
LEARNED: dict[str, Any] = {"positions": "learned", "max_length": 20}

RECORDS = {
    "gpt2": Record("CS", SMALL["gpt2"] | LEARNED, lambda: {"tokens": tokens(3, 19), "padding_mask": lengths(19, 4, 7)}),
    "roberta": Record("NS", SMALL["roberta"], lambda: {"tokens": tokens(3, 19), "padding_mask": lengths(19, 4, 7)}),
    "transformer": Record(
        "CC",
        SMALL["transformer"],
        lambda: {"source": tokens(3, 19), "target": tokens(3, 14), "source_padding_mask": lengths(19, 4, 7)},
    ),
    "informer": Record("NC", FORECAST, series),
    "pointr": Record("NC", POINTS, lambda: {"partial": torch.randn(3, 30, 3)}),
    "sr3": Record("NS", PIXELS, lambda: {"image": torch.randn(3, 6, 8, 8), "noise_level": torch.rand(3)}),
    "fastspeech2": Record("NS", {**TTS, **FRAMES}, spoken_tokens),
    "transformer_tts": Record("CC", {**TTS, **STEPS}, spoken_steps),
}
