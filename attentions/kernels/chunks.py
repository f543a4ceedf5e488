"""Chunks of long sequences whose intermediate results fit in the processor cache, recomputed in the backward pass.

Shapes: B batch, H heads, G batch times heads, h heads of a chunk, N queries, M keys, E width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.numerics import recompute, recompute_upcast
from cab.attention import Decoded, DecodeState
from cab.padding import lengths

CPU_TOKENS, DEVICE_TOKENS = 2**12, 2**18
"""Tokens per chunk, counted once per sequence and head. On a GPU, launches cost more than memory."""

MULTIPLE = 64


def groups_at_once(num_tokens: int, device: torch.device) -> int:
    """Return how many groups of ``num_tokens`` tokens fit in a chunk, at least one."""
    return max(1, (CPU_TOKENS if device.type == "cpu" else DEVICE_TOKENS) // max(num_tokens, 1))


def tokens_at_once(num_groups: int, device: torch.device) -> int:
    """Return the number of tokens per chunk for ``num_groups`` sequences times heads, a multiple of 64."""
    return max(1, groups_at_once(num_groups, device) // MULTIPLE) * MULTIPLE


def chunk_slices(x: Tensor) -> Iterator[slice]:
    """Yield slices of the second last dimension of ``x`` [..., N, E]."""
    size = tokens_at_once(x.shape[:-2].numel(), x.device)
    return (slice(start, start + size) for start in range(0, x.shape[-2], size))


def dropout_seed(dropout: float) -> Tensor | None:
    """Draw the seed that both passes share; None without dropout."""
    return torch.randint(2**62, ()) if dropout else None


def dropout_factor(weights: Tensor, dropout: float, seed: Tensor | None, number: int) -> Tensor | None:
    """Return the factors of dropout for the weights of block ``number``, equal in both passes; None without dropout."""
    if seed is None:
        return None
    generator = torch.Generator(weights.device).manual_seed(int(seed) + number)
    return torch.empty_like(weights).bernoulli_(1.0 - dropout, generator=generator).div_(1.0 - dropout)


Heads = Sequence[Tensor]
"""Query, key and value of some tokens."""

Extras = Mapping[str, Tensor]
"""Side inputs by name, [B, N, ...] each."""


def over_chunks(
    function: Callable[[Heads, Tensor | None, DecodeState, Extras], Decoded],
    heads: Heads,
    padding: Tensor | None,
    state: DecodeState,
    extras: Extras,
) -> Decoded:
    """Apply ``function`` to chunks of tokens that fit in the processor cache, and recompute each in the backward pass.

    Only heads, extras, outputs and one state per chunk are stored. ``padding`` is [B, N] or None, and ``state`` that
    before the first token.
    """
    size = tokens_at_once(heads[-1].shape[:2].numel(), heads[-1].device)
    if heads[-1].shape[2] <= size:
        return function(heads, padding, state, extras)
    masks = None if padding is None else padding.split(size, dim=1)
    split_extras = {name: x.split(size, dim=1) for name, x in extras.items()}
    outputs = []
    for number, chunk in enumerate(zip(*(x.split(size, dim=2) for x in heads), strict=True)):
        of_chunk = {name: x[number] for name, x in split_extras.items()}
        output, state = recompute(function, chunk, None if masks is None else masks[number], state, of_chunk)
        outputs.append(output)
    return torch.cat(outputs, dim=2), state


CPU_ELEMENTS, DEVICE_ELEMENTS = 2**21, 2**27
"""Largest number of elements that a chunk of more than one head computes."""


def chunk_size(cost: int, device: torch.device) -> int:
    """Return how many items fit in a chunk if each computes ``cost`` elements, at least one."""
    return max(1, (CPU_ELEMENTS if device.type == "cpu" else DEVICE_ELEMENTS) // max(cost, 1))


def in_chunks(
    function: Callable[..., Tensor],
    heads: Sequence[Tensor],
    per_head: Sequence[Tensor] = (),
    *,
    cost: int,
    dropout: float = 0.0,
) -> Tensor:
    """Return ``function(*heads, *per_head)``, computed for a few heads of one sequence at a time in float32 or wider.

    Args:
        function: maps [h, N, E] of each of ``heads`` and [h, ...] of each of ``per_head`` to [h, N, E].
        heads: [B, H, N, E] each.
        per_head: [H, ...] each, shared by all sequences.
        cost: elements that one head computes.
        dropout: above 0 if the function draws random numbers.
    """
    size = chunk_size(cost, heads[0].device)
    shared = [x.split(size) for x in per_head]
    rows = []
    with torch.autocast(heads[0].device.type, enabled=False):
        for row in zip(*(x.unbind() for x in heads), strict=True):
            chunks = zip(*(x.split(size) for x in row), *shared, strict=True)
            rows.append(torch.cat([recompute_upcast(function, chunk, dropout) for chunk in chunks]))
    return torch.stack(rows)


CUTS_PADDING = {"cpu"}
"""Types of devices on which padding is cut off, which computes less. On others the host would wait for the lengths."""


def by_length(
    function: Callable[..., Tensor], heads: Sequence[Tensor], mask: Tensor | None, *, masks: bool = False
) -> Tensor:
    """Return ``function(*heads)``, called once per sequence length, without the padding on the right.

    This is for methods that depend on the length of a sequence. ``heads`` are [B, ..., N, E] and ``mask`` is [B, N].
    Padded outputs are zero. With ``masks``, a device that is not in :data:`CUTS_PADDING` calls the function once, with
    the mask as its argument ``hidden``; padded outputs are then finite and meaningless.
    """
    if mask is None:
        return function(*heads)
    if masks and heads[0].device.type not in CUTS_PADDING:
        return function(*heads, hidden=mask)
    counts, full = lengths(heads[0], mask), mask.shape[1]
    outputs, rows = [], []
    for length in counts.unique().tolist():
        of_length = (counts == length).nonzero()[:, 0]
        rows_of_length = [x[of_length][..., :length, :] for x in heads]
        output = function(*rows_of_length) if length else rows_of_length[0]
        outputs.append(F.pad(output, (0, 0, 0, full - length)))
        rows.append(of_length)
    return torch.cat(outputs)[torch.cat(rows).argsort()]


CPU_WEIGHTS, DEVICE_WEIGHTS = 2**21, 2**26
"""Weights per chunk of targets. On a GPU, launches cost more than memory."""

FEWEST = 16
"""Smallest chunk of targets."""


def sums_by_targets(
    weigh: Callable[[slice, int], Tensor],
    query: Tensor,
    value: Tensor,
    *,
    is_causal: bool,
    dropout: float = 0.0,
    cost: int = 1,
) -> Tensor:
    """Return the weighted sum of ``value`` [B, H, M, E] for each target of ``query`` [B, H, N, ...], [B, H, N, E].

    Args:
        weigh: maps a slice of the targets and a number of keys m to weights of the first m keys, [B, H, targets, m].
        query: only its shape is used.
        value: weights are rounded to its dtype.
        is_causal: whether target i sees no key after i, so that later weights are not computed.
        dropout: probability of dropping a weight.
        cost: elements that a weight takes.
    """
    num_targets, num_keys = query.shape[2], value.shape[2]
    most = CPU_WEIGHTS if value.device.type == "cpu" else DEVICE_WEIGHTS
    size = max(FEWEST, most // max(value.shape[0] * value.shape[1] * num_keys * cost, 1))

    def some(targets: slice) -> Tensor:
        seen = min(targets.stop, num_keys) if is_causal else num_keys
        return F.dropout(weigh(targets, seen), dropout).to(value.dtype) @ value[:, :, :seen]

    outputs = []
    for begin in range(0, num_targets, size):
        targets = slice(begin, min(begin + size, num_targets))
        outputs.append(recompute(some, targets, draws=dropout > 0.0))
    return torch.cat(outputs, dim=2)


def masked(targets: slice, num_keys: int, hidden: Tensor | None, *, is_causal: bool, like: Tensor) -> Tensor | None:
    """Return which of the first ``num_keys`` keys are masked, bool [B or 1, 1, targets or 1, num_keys].

    None if the targets see all of them. Keys in ``hidden`` [B, M] are masked for all targets.
    """
    mask = None if hidden is None else hidden[:, None, None, :num_keys]
    if is_causal:
        target = torch.arange(targets.start, targets.stop, device=like.device).unsqueeze(1)
        later = torch.arange(num_keys, device=like.device) > target
        mask = later[None, None] if mask is None else mask | later
    return mask
