"""Protocols that define the methods tasks call on backbones; ``__call__`` is the backbone's ``forward``.

A task lists the protocols that it accepts (``Task.required_protocols``). A backbone implements a protocol by having its
methods; it needs no base class.

Shapes: B batch, N or T tokens, M source tokens, V vocabulary, C classes or channels, F spectrogram frames. Tensors have
the batch first; masks are bool, True = padding.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from cab.attention import DecodeState
from cab.patterns import Pattern


class TokenGenerator(Protocol):
    """A model that decodes token by token; its state has ``num_read`` and ``select(rows)``."""

    def prefill(self, tokens: Tensor, state: Any, *, padding_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """Read tokens [B, T]; return the logits [B, V] after the last one, and the new state."""

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read one token per sequence, [B]; return the next logits [B, V], and the new state."""


class TokenLM(TokenGenerator, Protocol):
    """A causal language model; used by the task lm."""

    def __call__(self, tokens: Tensor, padding_mask: Tensor | None = None, *, selected: Tensor | None = None) -> Tensor:
        """Return the logits [B, N, V] of the token after each of ``tokens`` [B, N].

        With ``selected`` [K], indices into the flattened ``tokens``, return only their logits [K, V].
        """

    def init_state(self, batch_size: int) -> Any:
        """Return the state before the first token."""


class RecurrentLM(TokenLM, Protocol):
    """A causal language model whose layers keep memories of earlier blocks; used by the task lm_recurrent."""

    def init_mems(self, batch_size: int, num_tokens: int) -> DecodeState:
        """Return empty memories for up to ``num_tokens`` tokens: tensors with the batch first."""

    def reset_mems(self, mems: DecodeState, rows: Tensor) -> DecodeState:
        """Return ``mems`` with the memories cleared where ``rows`` [B], bool, is True; no old value has an effect."""

    def __call__(
        self,
        tokens: Tensor,
        padding_mask: Tensor | None = None,
        *,
        selected: Tensor | None = None,
        mems: DecodeState | None = None,
    ) -> Any:
        """Read ``tokens`` [B, N], which follow ``mems``; return logits [B, N, V] and the new memories.

        The memories are detached: no gradient flows into them. Without ``mems``, as for :class:`TokenLM`.
        """


class SequenceToSequence(TokenGenerator, Protocol):
    """An encoder and a causal decoder of tokens; used by the task sum."""

    def __call__(
        self,
        source: Tensor,
        target: Tensor,
        source_padding_mask: Tensor | None = None,
        target_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the logits [B, N, V] of the token after each of ``target`` [B, N], given ``source`` [B, M]."""

    def init_state(self, source: Tensor, source_padding_mask: Tensor | None = None) -> Any:
        """Encode ``source`` [B, M] and return the state before the first target token."""


class MaskedLM(Protocol):
    """A bidirectional language model; used by the task mlm."""

    def __call__(self, tokens: Tensor, padding_mask: Tensor | None = None, *, selected: Tensor | None = None) -> Tensor:
        """Return the logits [K, V] at the positions ``selected`` [K] of the flattened ``tokens`` [B, N]."""


class SequenceClassifier(Protocol):
    """A classifier of token sequences with the option ``num_classes``; used by the task glue."""

    def __call__(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Return the logits [B, C] of ``tokens`` [B, N], padded on the right."""

    def take_pretrained(self, weights: Mapping[str, Tensor]) -> None:
        """Load the weights that this network shares with a :class:`MaskedLM` from its state dict.

        Raises:
            UserError: a weight is missing or has another shape.
        """


class PairClassifier(Protocol):
    """A classifier of sequences, or of pairs that it encodes separately; used by the task lra."""

    def __call__(self, tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Return the logits [B, C] of ``tokens`` [B, N]."""

    def compare(
        self,
        first: Tensor,
        second: Tensor,
        first_padding_mask: Tensor | None = None,
        second_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the logits [B, C] of pairs of ``first`` [B, N] and ``second`` [B, M]."""


class Forecaster(Protocol):
    """A forecaster of multivariate time series; used by the task lstf."""

    def __call__(self, past: Tensor, past_time: Tensor, known: Tensor, decoder_time: Tensor) -> Tensor:
        """Forecast the T steps [B, T, C] that follow ``past``.

        Args:
            past: observed values, [B, N, C].
            past_time: calendar features of ``past``, [B, N, 4].
            known: last K observed values, the start of the decoder's input, [B, K, C].
            decoder_time: calendar features of ``known`` and of the T forecast steps, [B, K + T, 4].
        """


class PointCompleter(Protocol):
    """A network that completes point clouds; used by the task pcc."""

    def __call__(self, partial: Tensor) -> tuple[Tensor, Tensor]:
        """Return the coarse and the fine points, each [B, *, 3], of a ``partial`` cloud [B, P, 3]."""


class Denoiser(Protocol):
    """A network that predicts the noise in an image, given its low-resolution version; used by the task sr."""

    def __call__(self, image: Tensor, noise_level: Tensor) -> Tensor:
        """Return the noise [B, 3, H, W] of ``image`` [B, 6, H, W] (low-resolution and noisy) at noise levels [B]."""


class SpokenTokens(NamedTuple):
    """Output of a :class:`DurationSynthesizer`.

    Attributes:
        mel: spectrogram, [B, F, bins].
        mel_padding: padding mask of the frames, [B, F].
        log_duration: predicted logarithm of the duration of each token, [B, T].
        pitch: predicted pitch of each token, [B, T].
        energy: predicted energy of each token, [B, T].
        before: spectrogram before the postnet, [B, F, bins]; None without a postnet.
    """

    mel: Tensor
    mel_padding: Tensor
    log_duration: Tensor
    pitch: Tensor
    energy: Tensor
    before: Tensor | None


class DurationSynthesizer(Protocol):
    """A speech synthesizer that generates all frames at once from token durations; used by the task tts."""

    def __call__(
        self,
        tokens: Tensor,
        padding_mask: Tensor | None = None,
        *,
        durations: Tensor | None = None,
        pitch: Tensor | None = None,
        energy: Tensor | None = None,
        num_frames: int | None = None,
    ) -> SpokenTokens:
        """Synthesize ``tokens`` [B, T] with the given durations, pitch and energy [B, T], or the predicted ones.

        ``num_frames`` is the largest sum of the given durations, which the host would wait for on a GPU.
        """


class SpokenSteps(NamedTuple):
    """Output of a :class:`StepSynthesizer`, with r frames per step.

    Attributes:
        before: spectrogram before the postnet, [B, S, r * bins].
        after: spectrogram after the postnet, [B, S, r * bins].
        stop_logits: logits of the end of speech, [B, S].
    """

    before: Tensor
    after: Tensor
    stop_logits: Tensor


class StepSynthesizer(Protocol):
    """An autoregressive speech synthesizer with r frames per step and a stop prediction; used by the task tts."""

    def __call__(
        self, tokens: Tensor, padding_mask: Tensor | None, frames: Tensor, frame_padding: Tensor | None = None
    ) -> SpokenSteps:
        """Predict each group of ``frames`` [B, S, r * bins] from ``tokens`` [B, T] and the preceding groups."""

    def synthesize(
        self,
        tokens: Tensor,
        padding_mask: Tensor | None = None,
        *,
        max_steps: int,
        threshold: float,
        prompt_frames: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Synthesize ``tokens`` [B, T] until the stop probability exceeds ``threshold``, or for ``max_steps`` steps.

        The output starts with ``prompt_frames`` [B, S0, r * bins].

        Returns:
            Frames [B, S * r, bins], and the number of frames of each sequence, [B].
        """


class Prober(Protocol):
    """A network whose attention layers all have one pattern, for inputs with S symbols per position; used by probe."""

    @property
    def pattern(self) -> Pattern:
        """Pattern of the attention layers; NC and CC require a source."""

    def __call__(self, symbols: Tensor, source: Tensor | None = None) -> Tensor:
        """Return the logits [B, N, V] at the positions of ``symbols`` [B, N, S], given a ``source`` [B, M, S]."""

    def decode_compressed(self, symbols: Tensor, source: Tensor | None = None) -> Tensor:
        """Return the logits [B, n, V] of n symbols that are decoded from the last position alone."""


def missing_call(backbone: type, protocol: type) -> str:
    """Return the first method of ``protocol`` that the class does not support, with its arguments; empty if none."""
    for base in protocol.__mro__:
        for name, member in vars(base).items():
            if isinstance(member, property) and not hasattr(backbone, name):
                return name
            if inspect.isfunction(member) and (name == "__call__" or not name.startswith("_")):
                method = "forward" if name == "__call__" else name
                if not _accepts(getattr(backbone, method, None), member):
                    names = [p for p in inspect.signature(member).parameters if p != "self"]
                    return f"{method}({', '.join(names)})"
    return ""


def _accepts(method: Callable[..., Any] | None, declared: Callable[..., Any]) -> bool:
    """Return whether ``method`` accepts the arguments of ``declared``."""
    if method is None or method is nn.Module.forward:
        return False
    parameters = inspect.signature(declared).parameters.values()
    positional = [None for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    try:
        inspect.signature(method).bind(*positional, **{p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY})
    except TypeError:
        return False
    return True
