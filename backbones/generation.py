"""Autoregressive generation, one token per step: greedy search, beam search, sampling.

All three read the prompt into ``state`` and return the continuation [B, T], T <= ``limits.max_length``; after its end
token, a sequence is filled with end tokens. Call ``eval()`` on the backbone first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cab import UserError
from cab.backbone_protocols import TokenGenerator


@dataclass(frozen=True)
class Limits:
    """Length limits and blocked tokens. Lengths count generated tokens, including the end token.

    Attributes:
        max_length: maximum number of tokens per sequence.
        min_length: the end token is blocked for this many tokens (Sum: 200, with a max_length of 400).
        end: the end token; without one, every sequence has ``max_length`` tokens.
        blocked_ngram: no n-gram of this size is generated twice in a sequence.
    """

    max_length: int
    min_length: int = 0
    end: int | None = None
    blocked_ngram: int | None = None

    def __post_init__(self) -> None:
        if self.max_length < 1 or not 0 <= self.min_length <= self.max_length:
            raise UserError(
                "generation needs max_length of at least 1 and min_length from 0 to max_length, "
                f"got {self.max_length} and {self.min_length}"
            )
        if self.blocked_ngram is not None and self.blocked_ngram < 1:
            raise UserError(f"blocked_ngram must be at least 1, got {self.blocked_ngram}")

    def block(self, scores: Tensor, tokens: Tensor) -> Tensor:
        """Mask ``scores`` [R, V] of the token after ``tokens`` [R, T] with -inf for blocked tokens."""
        num_generated = tokens.shape[1]
        if self.end is not None and num_generated < self.min_length:
            end = torch.tensor([self.end], device=scores.device)
            scores = scores.index_fill(1, end, float("-inf"))
        n = self.blocked_ngram
        if n is not None and num_generated >= n:
            grams = tokens.unfold(1, n, 1)
            start = tokens[:, num_generated - n + 1 :]
            repeats = (grams[:, :, : n - 1] == start.unsqueeze(1)).all(dim=-1)
            penalty = torch.where(repeats, float("-inf"), 0.0).to(scores.dtype)
            scores = scores.scatter_add(1, grams[:, :, -1], penalty)
        return scores


@torch.no_grad()
def greedy(backbone: TokenGenerator, state: Any, prompt: Tensor, limits: Limits) -> Tensor:
    """Generate the most likely token at each step.

    Args:
        state: from the backbone's ``init_state``, or after a prefix.
        prompt: [B, P] tokens to read first; for Sum, the token that starts every target.
    """
    return _generate(backbone, state, prompt, limits, lambda scores: scores.argmax(dim=-1))


@torch.no_grad()
def sample(
    backbone: TokenGenerator,
    state: Any,
    prompt: Tensor,
    limits: Limits,
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Sample tokens from softmax(logits / temperature), within the nucleus (Holtzman et al. 2020).

    Args:
        state, prompt: as in :func:`greedy`.
        top_p: sample from the smallest set of tokens with at least this total probability.
        generator: random number generator on the backbone's device.
    """
    if temperature <= 0.0 or not 0.0 < top_p <= 1.0:
        raise UserError(f"sampling needs a temperature above 0 and top_p in (0, 1], got {temperature} and {top_p}")

    def choose(scores: Tensor) -> Tensor:
        probabilities, tokens = (scores / temperature).softmax(dim=-1).sort(dim=-1, descending=True)
        likelier = probabilities.cumsum(dim=-1) - probabilities
        drawn = probabilities.masked_fill(likelier >= top_p, 0.0).multinomial(1, generator=generator)
        return tokens.gather(1, drawn).squeeze(1)

    return _generate(backbone, state, prompt, limits, choose)


def _generate(
    backbone: TokenGenerator, state: Any, prompt: Tensor, limits: Limits, choose: Callable[[Tensor], Tensor]
) -> Tensor:
    logits, state = backbone.prefill(prompt, state)
    output = prompt.new_full((len(prompt), limits.max_length), _fill(limits))
    rows = torch.arange(len(prompt), device=prompt.device)  # unfinished sequences; finished ones are dropped
    for length in range(limits.max_length):
        token = choose(limits.block(logits.float(), output[rows, :length]))
        output[rows, length] = token
        if limits.end is not None:
            going = (token != limits.end).nonzero().squeeze(1)
            if len(going) == 0:
                return output[:, : length + 1]
            if len(going) < len(rows):
                rows, token, state = rows[going], token[going], state.select(going)
        if length + 1 < limits.max_length:
            logits, state = backbone.step(token, state)
    return output


@torch.no_grad()
def beam_search(
    backbone: TokenGenerator,
    state: Any,
    prompt: Tensor,
    limits: Limits,
    *,
    num_beams: int,
    length_penalty: float = 1.0,
) -> Tensor:
    """Return the best hypothesis of beam search: the largest log probability / length^length_penalty.

    As in fairseq, an end token counts when it is among the ``num_beams`` best continuations of its step, and a sequence
    is finished after ``num_beams`` end tokens. At ``max_length`` the beams themselves are hypotheses.
    """
    if num_beams < 1:
        raise UserError(f"num_beams must be at least 1, got {num_beams}")
    logits, state = backbone.prefill(prompt, state)
    batch_size, vocab_size = logits.shape
    first_beam = torch.arange(batch_size, device=prompt.device).unsqueeze(1) * num_beams
    state = state.select(torch.arange(batch_size, device=prompt.device).repeat_interleave(num_beams))
    logits = logits.repeat_interleave(num_beams, dim=0)
    beams = Beams.empty(batch_size, num_beams, limits, prompt)
    beams.scores[:, 0] = 0.0  # all beams start identical: only the first counts
    endings = Beams.empty(batch_size, num_beams, limits, prompt)
    for length in range(limits.max_length):
        scores = limits.block(logits.float().log_softmax(dim=-1), beams.tokens.flatten(0, 1)[:, :length])
        scores = (beams.scores.unsqueeze(2) + scores.unflatten(0, (batch_size, num_beams))).flatten(1)
        # Of twice as many candidates, at least num_beams have not ended: each beam has one end token.
        best, flat = scores.topk(min(2 * num_beams, scores.shape[1]), dim=1)
        candidates = beams.extend(flat // vocab_size, flat % vocab_size, length, best)
        if limits.end is not None:
            has_ended = candidates.tokens[:, :, length] == limits.end
            is_done = endings.scores.isfinite().all(dim=1, keepdim=True)
            ended = candidates.where(has_ended & ~is_done)
            ended = Beams(ended.tokens[:, :num_beams], ended.scores[:, :num_beams])
            endings = endings.merge(ended, (length + 1) ** length_penalty)
            candidates = candidates.where(~has_ended)
            if bool(endings.scores.isfinite().all()):
                break
        beams, chosen = candidates.best(num_beams)
        if length + 1 < limits.max_length:
            origin = (flat // vocab_size).gather(1, chosen)
            state = state.select((first_beam + origin).flatten())
            logits, state = backbone.step(beams.tokens[:, :, length].flatten(), state)
    else:
        is_done = endings.scores.isfinite().all(dim=1, keepdim=True)
        endings = endings.merge(beams.where(~is_done), limits.max_length**length_penalty)
    output = endings.tokens[:, 0]
    if limits.end is None:
        return output
    longest = int((output != limits.end).sum(dim=1).max()) + 1
    return output[:, :longest]


@dataclass(frozen=True)
class Beams:
    """Hypotheses per sequence: tokens [B, K, max_length] and scores [B, K], -inf for unused entries."""

    tokens: Tensor
    scores: Tensor

    @classmethod
    def empty(cls, batch_size: int, num_beams: int, limits: Limits, like: Tensor) -> Beams:
        tokens = like.new_full((batch_size, num_beams, limits.max_length), _fill(limits))
        scores = torch.full((batch_size, num_beams), float("-inf"), device=like.device)
        return cls(tokens, scores)

    def extend(self, origin: Tensor, token: Tensor, position: int, scores: Tensor) -> Beams:
        """Select hypotheses ``origin`` [B, C] and write ``token`` [B, C] at ``position``."""
        tokens = self.tokens.gather(1, origin.unsqueeze(2).expand(-1, -1, self.tokens.shape[2]))
        tokens[:, :, position] = token
        return Beams(tokens, scores)

    def where(self, keep: Tensor) -> Beams:
        return Beams(self.tokens, self.scores.masked_fill(~keep, float("-inf")))

    def best(self, number: int) -> tuple[Beams, Tensor]:
        """Return the ``number`` hypotheses with the largest scores, and their indices [B, number]."""
        scores, indices = self.scores.topk(number, dim=1)
        tokens = self.tokens.gather(1, indices.unsqueeze(2).expand(-1, -1, self.tokens.shape[2]))
        return Beams(tokens, scores), indices

    def merge(self, others: Beams, divisor: float) -> Beams:
        """Keep the best of these and of ``others``, whose scores are divided by ``divisor`` first."""
        tokens = torch.cat([self.tokens, others.tokens], dim=1)
        scores = torch.cat([self.scores, others.scores / divisor], dim=1)
        return Beams(tokens, scores).best(self.scores.shape[1])[0]


def _fill(limits: Limits) -> int:
    return 0 if limits.end is None else limits.end
