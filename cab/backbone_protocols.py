"""What tasks call on backbones, a protocol for each kind of network; ``__call__`` is its ``forward``.

A task names the protocols that it can work with (``Task.required_protocols``), and a backbone fulfils one by having its
methods: no base class, no name. Batch first, masks with True = padding.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from cab.attention import DecodeState
from cab.patterns import Pattern


class TokenGenerator(Protocol):
    """Decodes onto a state that knows ``num_read`` and ``select(rows)``."""

    @property
    def max_target_length(self) -> int | None:
        """Tokens that it has positions for; None where any number works."""

    def prefill(self, tokens: Tensor, state: Any, *, padding_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """Logits [B, V] after the last of several tokens [B, T], and the state."""

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Logits [B, V] after one token a row [B], and the state."""


class TokenLM(TokenGenerator, Protocol):
    """A causal language model: LM."""

    def __call__(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Logits [B, N, V] of the token after each of [B, N]."""

    def init_state(self, batch_size: int) -> Any:
        """The state before the first token."""


class RecurrentLM(Protocol):
    """A causal language model whose layers remember the blocks before: LM with ``trainer.memory_length``."""

    def no_past(self, batch_size: int, num_tokens: int) -> DecodeState:
        """What is remembered before the first token, of ``num_tokens`` at most: tensors with the batch first."""

    def forget(self, past: DecodeState, rows: Tensor) -> DecodeState:
        """The same, but empty for ``rows``, bool [B]; whatever stood there reaches nothing."""

    def __call__(
        self, tokens: Tensor, padding_mask: Tensor | None = None, *, past: DecodeState
    ) -> tuple[Tensor, DecodeState]:
        """Logits [B, N, V] of the token after each of [B, N], which follow ``past``; and what is remembered then.

        No gradient leads to what is remembered.
        """


class SequenceToSequence(TokenGenerator, Protocol):
    """An encoder and a causal decoder of tokens: Sum."""

    def __call__(
        self,
        source: Tensor,
        target: Tensor,
        source_padding_mask: Tensor | None = None,
        target_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits [B, N, V] of the target token after each of [B, N], with a source [B, M]."""

    def init_state(self, source: Tensor, source_padding_mask: Tensor | None = None) -> Any:
        """The state before the first target token."""


class MaskedLM(Protocol):
    """A language model that reads on both sides: MLM."""

    def __call__(self, tokens: Tensor, padding_mask: Tensor | None = None, *, selected: Tensor | None = None) -> Tensor:
        """Logits [K, V] of the token at ``selected`` [K] places of the flattened tokens [B, N]."""


class SequenceClassifier(Protocol):
    """Says of which class a row of tokens is: GLUE. Its option ``num_classes`` is how many there are."""

    def __call__(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Logits [B, C] of rows of tokens [B, N], padded at their ends."""

    def take_pretrained(self, weights: Mapping[str, Tensor]) -> None:
        """Take what there is of this network in the state dict of a :class:`MaskedLM`; ValueError where it differs."""


class PairClassifier(Protocol):
    """Names the class of a sequence, or of a pair that it reads one by one: Long Range Arena."""

    def __call__(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Logits [B, C] of sequences [B, N]."""

    def compare(
        self,
        first: Tensor,
        second: Tensor,
        first_padding_mask: Tensor | None = None,
        second_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits [B, C] of pairs of sequences [B, N] and [B, M]."""


class Forecaster(Protocol):
    """Forecasts series: LSTF."""

    def __call__(self, past: Tensor, past_time: Tensor, known: Tensor, decoder_time: Tensor) -> Tensor:
        """The next T steps [B, T, C] of ``past`` [B, N, C]; calendar features [B, N, 4] and [B, K + T, 4]; the decoder
        starts at ``known`` [B, K, C].
        """


class PointCompleter(Protocol):
    """Completes point clouds: PCC."""

    def __call__(self, partial: Tensor) -> tuple[Tensor, Tensor]:
        """Coarse and fine points [B, *, 3] of a partial cloud [B, P, 3]."""


class Denoiser(Protocol):
    """Predicts the noise in an image beside its low-resolution form: SR."""

    def __call__(self, image: Tensor, noise_level: Tensor) -> Tensor:
        """Noise [B, 3, H, W] of both images [B, 6, H, W] at noise levels [B]."""


class SpokenTokens(NamedTuple):
    """``mel`` [B, F, bins], ``mel_padding`` [B, F] (True = padding); the rest [B, T], one number a token.

    ``before`` are the frames before the postnet, where there is one.
    """

    mel: Tensor
    mel_padding: Tensor
    log_duration: Tensor
    pitch: Tensor
    energy: Tensor
    before: Tensor | None


class DurationSynthesiser(Protocol):
    """Speaks all frames at once, each token for as long as it lasts: TTS."""

    def __call__(
        self,
        tokens: Tensor,
        padding_mask: Tensor | None = None,
        *,
        durations: Tensor | None = None,
        pitch: Tensor | None = None,
        energy: Tensor | None = None,
    ) -> SpokenTokens:
        """Frames of the tokens [B, T], with the given values of each token [B, T] or with the predicted ones."""


class SpokenSteps(NamedTuple):
    """Frames ``before`` and ``after`` the postnet [B, S, r * bins], and ``stop_logits`` [B, S]."""

    before: Tensor
    after: Tensor
    stop_logits: Tensor


class StepSynthesiser(Protocol):
    """Speaks r frames a step until it stops itself: TTS."""

    def __call__(
        self, tokens: Tensor, padding_mask: Tensor | None, frames: Tensor, frame_padding: Tensor | None = None
    ) -> SpokenSteps:
        """Each group of frames [B, S, r * bins] from the tokens [B, T] and the groups before it."""

    def synthesize(
        self,
        tokens: Tensor,
        padding_mask: Tensor | None = None,
        *,
        max_steps: int,
        threshold: float,
        beginning: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Frames [B, S * r, bins], and how many each row has [B]; ``beginning`` [B, S0, r * bins] is said already."""


class Prober(Protocol):
    """Reads symbols in the one pattern of its slots, several a place [B, N, S]: probe."""

    @property
    def pattern(self) -> Pattern:
        """NS and CS read one sequence, NC and CC a source beside it."""

    def __call__(self, symbols: Tensor, source: Tensor | None = None) -> Tensor:
        """Logits [B, N, V] at each place, with a source [B, M, S] in the cross patterns."""

    def unpack(self, symbols: Tensor, source: Tensor | None = None) -> Tensor:
        """Logits [B, n, V] of n symbols that the last place must hold."""


def missing_call(backbone: type, protocol: type) -> str:
    """The first call of ``protocol`` that objects of the class do not take; empty when they take all."""
    for base in protocol.__mro__:
        for name, wanted in vars(base).items():
            if isinstance(wanted, property) and not hasattr(backbone, name):
                return name
            if inspect.isfunction(wanted) and (name == "__call__" or not name.startswith("_")):
                method = "forward" if name == "__call__" else name
                if not _takes(getattr(backbone, method, None), wanted):
                    names = [p for p in inspect.signature(wanted).parameters if p != "self"]
                    return f"{method}({', '.join(names)})"
    return ""


def _takes(found: Callable[..., Any] | None, wanted: Callable[..., Any]) -> bool:
    """Whether ``found`` can be called with what ``wanted`` is called with."""
    if found is None or found is nn.Module.forward:
        return False
    parameters = inspect.signature(wanted).parameters.values()
    positional = [None for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    try:
        inspect.signature(found).bind(*positional, **{p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY})
    except TypeError:
        return False
    return True
