"""One record per backbone: small options and inputs, from which it gets the properties of tests/backbones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cab import Backbone, build_backbone
from tests.helpers.backbones.language_models import SMALL, padding, spec, tokens

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Record:
    """A small network, and what makes the inputs of three rows."""

    pattern: str
    options: dict[str, Any]
    inputs: Callable[[], Inputs]
    hides: dict[str, tuple[str, ...]] = field(default_factory=dict)  # the inputs of each mask
    source: Callable[[], Inputs] = field(default=dict)  # further inputs in cross patterns

    def build(self, name: str, pattern: str = "", **options: Any) -> Backbone:
        return build_backbone(name, pattern=pattern or self.pattern, **{**self.options, **options}).eval()

    def random(self, name: str, pattern: str, attention: str | Mapping[str, Any], **options: Any) -> Backbone:
        """In float64, with norms and biases at random too, and an attention with options for short sequences."""
        backbone = self.build(name, pattern, attention=spec(attention, pattern), **options).double()
        for key, value in [*backbone.named_parameters(), *backbone.named_buffers()]:
            if key.endswith(("alpha", "norm.weight", "bias", "running_mean")):
                nn.init.normal_(value, mean=1.0 if key.endswith("weight") else 0.0, std=0.2)
        return backbone

    def batch(self, pattern: str) -> Inputs:
        """The same inputs at each call."""
        torch.manual_seed(1)
        return {**self.inputs(), **(self.source() if pattern in ("NC", "CC") else {})}


def outputs(output: Tensor | tuple[Tensor | None, ...]) -> list[Tensor]:
    return [output] if isinstance(output, Tensor) else [x for x in output if x is not None]


def objective(backbone: Any, inputs: Inputs) -> Tensor:
    """A loss that every output has a share in: how far it is from a curve."""
    numbers = [x for x in outputs(backbone(**inputs)) if x.is_floating_point()]
    return sum((x - torch.arange(x.numel()).view_as(x).mul(0.7).cos()).square().mean() for x in numbers)  # type: ignore[return-value]


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
POINTS |= {"first_samples": 20, "num_proxies": 11, "num_queries": 9, "init_std": None}
POINTS |= {"num_neighbors": 3, "num_proxy_neighbors": 4, "num_global": 16}
PIXELS: dict[str, Any] = {"image_size": 8, "base_channels": 8, "channel_multipliers": [1, 2]}
PIXELS |= {"attention_resolutions": [4], "num_blocks": 1, "norm_groups": 4}
FORECAST: dict[str, Any] = {"channels": 3, "embed_dim": 16, "num_heads": 2, "ffn_dim": 32, "dropout": 0.0}
LEARNED: dict[str, Any] = {"positions": "learned", "max_length": 20}


def padded_tokens() -> Inputs:
    """Padding on the right, on the left and inside."""
    return {"tokens": tokens(3, 19), "padding_mask": padding(19)[:3]}


def symbols() -> Tensor:
    return tokens(3, 19).unsqueeze(-1) + 1


def right_padded() -> Inputs:
    return {"tokens": tokens(3, 19), "padding_mask": lengths(19, 4, 7)}


HIDDEN = {"padding_mask": ("tokens",)}
SPOKEN = {"padding_mask": ("tokens", "durations", "pitch", "energy")}
CLASSES: dict[str, Any] = SMALL["roberta"] | {"num_classes": 5}
RECORDS = {
    "gpt2": Record("CS", SMALL["gpt2"] | LEARNED, padded_tokens, HIDDEN),
    **{
        name: Record("CS", SMALL["gpt2"], padded_tokens, HIDDEN)
        for name in ("gpt2_reversible", "gpt2_universal", "gpt2_act")
    },
    "llama": Record("CS", SMALL["llama"], padded_tokens, HIDDEN),
    "roberta": Record("NS", SMALL["roberta"], padded_tokens, HIDDEN),
    "roberta_funnel": Record("NS", SMALL["roberta"] | {"num_layers": 3}, padded_tokens, HIDDEN),
    "roberta_classifier": Record("NS", CLASSES, right_padded, HIDDEN),
    "roberta_funnel_classifier": Record("NS", CLASSES, padded_tokens, HIDDEN),
    "encoder": Record("NS", SMALL["encoder"], right_padded, HIDDEN),
    "mixer": Record(
        "CS",
        {"vocab_size": 24, "embed_dim": 16, "num_heads": 2, "ffn_dim": 24},
        lambda: {"symbols": symbols()},
        source=lambda: {"source": symbols()},
    ),
    "transformer": Record(
        "CC",
        SMALL["transformer"],
        lambda: {
            **{"source": tokens(3, 19), "target": tokens(3, 14)},
            **{"source_padding_mask": padding(19)[:3], "target_padding_mask": padding(14)[2:]},
        },
        {"source_padding_mask": ("source",), "target_padding_mask": ("target",)},
    ),
    "informer": Record("NC", FORECAST, series),
    "pointr": Record("NC", POINTS, lambda: {"partial": torch.randn(3, 30, 3)}),
    "sr3": Record("NS", PIXELS, lambda: {"image": torch.randn(3, 6, 8, 8), "noise_level": torch.rand(3)}),
    "fastspeech2": Record("NS", {**TTS, **FRAMES}, spoken_tokens, SPOKEN),
    "transformer_tts": Record("CC", {**TTS, **STEPS}, spoken_steps, HIDDEN | {"frame_padding": ("frames",)}),
}
