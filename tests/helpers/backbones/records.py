"""One record per backbone: small options and inputs, from which it gets the properties of tests/backbones."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cab import Backbone, build_backbone
from cab.training import auxiliary_loss

Inputs = dict[str, Tensor]
VOCABULARY = 23
OPTIONS = {  # small enough that windows, chunks and segments end inside the sequences
    "local": {"window_size": 5},
    "abc": {"num_landmarks": 5},
    "longshort CS": {"window_size": 5, "chunk_size": 4},
    "longshort NS": {"window_size": 5, "num_landmarks": 3},
    "performer": {"num_features": 6},
    "cosformer": {"reweighting_length": 50},
}


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

    def batch(self, pattern: str) -> Inputs:
        """The same inputs at each call."""
        torch.manual_seed(1)
        return {**self.inputs(), **(self.source() if pattern in ("NC", "CC") else {})}


def small(name: str, pattern: str = "", attention: str | Mapping[str, Any] = "vanilla", **options: Any) -> Any:
    """The network in float64, with norms and biases at random too, and attentions with options for short sequences."""
    record = RECORDS[name]
    if isinstance(attention, str):
        found = OPTIONS.get(attention, OPTIONS.get(f"{attention} {pattern or record.pattern}", {}))
        attention = {"name": attention, **found}
    backbone = record.build(name, pattern, attention=attention, **options).double()
    for key, value in [*backbone.named_parameters(), *backbone.named_buffers()]:
        if key.endswith(("alpha", "norm.weight", "bias", "running_mean")):
            nn.init.normal_(value, mean=1.0 if key.endswith("weight") else 0.0, std=0.2)
    return backbone


def tokens(rows: int, length: int) -> Tensor:
    return torch.randint(VOCABULARY, (rows, length))


def padding(length: int) -> Tensor:
    """Five rows: padding on the right, on the left, inside, all but one token, none."""
    mask = torch.zeros(5, length, dtype=torch.bool)
    mask[0, length - length // 3 :] = True
    mask[1, : length // 4] = True
    mask[2, 1::3] = True
    mask[3] = True
    mask[3, length // 2] = False
    return mask


def lengths(*counts: int) -> Tensor:
    """Return the mask [3, N] of rows that are padded on the right."""
    return torch.arange(max(counts)) >= torch.tensor(counts).unsqueeze(1)


def outputs(output: Tensor | tuple[Tensor | None, ...]) -> list[Tensor]:
    return [output] if isinstance(output, Tensor) else [x for x in output if x is not None]


def objective(backbone: Any, inputs: Inputs) -> Tensor:
    """A loss that every output has a share in: how far it is from a curve; and what the network adds to it."""
    numbers = [x for x in outputs(backbone(**inputs)) if x.is_floating_point()]
    losses = [(x - torch.arange(x.numel()).view_as(x).mul(0.7).cos()).square().mean() for x in numbers]
    own = auxiliary_loss(backbone)
    return torch.stack(losses).sum() if own is None else torch.stack(losses).sum() + own


def same_gradients(backbone: Backbone, one: Tensor, other: Tensor, **tolerances: float) -> None:
    """Of the same random combination of two outputs."""
    direction, (names, weights) = torch.randn_like(one), zip(*backbone.named_parameters(), strict=True)
    pair = [torch.autograd.grad(x, weights, direction, allow_unused=True, retain_graph=True) for x in (one, other)]
    for name, first, second in zip(names, *pair, strict=True):
        assert (first is None) == (second is None), name
        if first is not None:
            torch.testing.assert_close(first, second, msg=lambda text, name=name: f"{name}: {text}", **tolerances)


def spoken_tokens() -> Inputs:
    durations = torch.randint(0, 5, (3, 9)) + (torch.arange(9) == 0)
    given = {"durations": durations, "pitch": torch.randn(3, 9), "energy": torch.randn(3, 9)}
    return {"tokens": torch.randint(1, 19, (3, 9)), "padding_mask": lengths(9, 4, 7), **given}


def spoken_steps() -> Inputs:
    given = {"frames": torch.randn(3, 9, 6), "frame_padding": lengths(7, 9, 4)}
    return {"tokens": torch.randint(0, 19, (3, 8)), "padding_mask": lengths(8, 5, 3), **given}


def series() -> Inputs:
    past, time = torch.randn(3, 50, 3).cumsum(dim=1), torch.rand(3, 57, 4) - 0.5
    return {"past": past, "past_time": time[:, :50], "known": past[:, -9:], "decoder_time": time[:, 41:]}


def padded_tokens() -> Inputs:
    """Padding on the right, on the left and inside."""
    return {"tokens": tokens(3, 19), "padding_mask": padding(19)[:3]}


def right_padded() -> Inputs:
    return {"tokens": tokens(3, 19), "padding_mask": lengths(19, 4, 7)}


def pair() -> Inputs:
    masks = {"source_padding_mask": padding(19)[:3], "target_padding_mask": padding(14)[2:]}
    return {"source": tokens(3, 19), "target": tokens(3, 14), **masks}


def symbols() -> Tensor:
    return tokens(3, 19).unsqueeze(-1) + 1


WIDTH: dict[str, Any] = {"vocab_size": VOCABULARY, "embed_dim": 24, "num_heads": 3, "ffn_dim": 40}
WIDTH |= {"dropout": 0.0, "attention_dropout": 0.0}
LAYERS, MASKED = WIDTH | {"num_layers": 2}, WIDTH | {"num_layers": 2, "max_length": 37}
CLASSES = MASKED | {"num_classes": 5}
BOTH = WIDTH | {"encoder_layers": 2, "decoder_layers": 2, "max_source_length": 41, "max_target_length": 37}
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
MIXED: dict[str, Any] = {"vocab_size": 24, "embed_dim": 16, "num_heads": 2, "ffn_dim": 24}
HIDDEN = {"padding_mask": ("tokens",)}
HIDES_BOTH = {"source_padding_mask": ("source",), "target_padding_mask": ("target",)}
SPOKEN = {"padding_mask": ("tokens", "durations", "pitch", "energy")}
RECORDS = {
    "gpt2": Record("CS", LAYERS | {"positions": "learned", "max_length": 20}, padded_tokens, HIDDEN),
    "gpt2_reversible": Record("CS", LAYERS, padded_tokens, HIDDEN),
    "gpt2_universal": Record("CS", LAYERS, padded_tokens, HIDDEN),
    "gpt2_act": Record("CS", LAYERS, padded_tokens, HIDDEN),
    "llama": Record("CS", LAYERS, padded_tokens, HIDDEN),
    "roberta": Record("NS", MASKED, padded_tokens, HIDDEN),
    "roberta_funnel": Record("NS", MASKED | {"num_layers": 3}, padded_tokens, HIDDEN),
    "roberta_classifier": Record("NS", CLASSES, right_padded, HIDDEN),
    "roberta_funnel_classifier": Record("NS", CLASSES, padded_tokens, HIDDEN),
    "encoder": Record("NS", CLASSES | {"init_std": 0.125}, right_padded, HIDDEN),
    "mixer": Record("CS", MIXED, lambda: {"symbols": symbols()}, source=lambda: {"source": symbols()}),
    "transformer": Record("CC", BOTH, pair, HIDES_BOTH),
    "informer": Record("NC", FORECAST, series),
    "pointr": Record("NC", POINTS, lambda: {"partial": torch.randn(3, 30, 3)}),
    "sr3": Record("NS", PIXELS, lambda: {"image": torch.randn(3, 6, 8, 8), "noise_level": torch.rand(3)}),
    "fastspeech2": Record("NS", {**TTS, **FRAMES}, spoken_tokens, SPOKEN),
    "transformer_tts": Record("CC", {**TTS, **STEPS}, spoken_steps, HIDDEN | {"frame_padding": ("frames",)}),
}
