"""LongShort in both forms: readable form, what a query sees, the state, dropout, parameter counts."""

from __future__ import annotations

import pytest
import torch

from attentions.kernels import window_attention
from cab import build_attention
from tests.attentions import agreement


def test_own_chunk_and_all_before_it_are_seen() -> None:
    """Tokens of the own chunk older than the window, and each earlier chunk, count."""
    module = agreement.make("longshort", "CS", window_size=3, chunk_size=8)
    x = torch.randn(1, 23, agreement.WIDTH, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(module(x)[0, 22].sum(), x)
    assert gradient[0].any(dim=-1).all()


def test_slots_of_a_chunk_are_not_seen_in_it() -> None:
    """With one chunk over everything and the window over everything, LongShort is attention with positions."""
    x = torch.randn(2, 20, agreement.WIDTH, dtype=torch.float64)
    long, short = (agreement.make("longshort", "CS", window_size=64, chunk_size=size) for size in (64, 20))
    short.load_state_dict(long.state_dict())
    torch.testing.assert_close(long(x), short(x))


def test_state_grows_by_slots_only() -> None:
    module = agreement.make("longshort", "CS", window_size=6, chunk_size=4, chunk_rank=2)
    state = module.init_state(3, dtype=torch.float64)
    sizes = []
    for x in torch.randn(13, 3, agreement.WIDTH, dtype=torch.float64):
        _, state = module.step(x, state)
        sizes.append((state["key"].shape[1], state["slot_key"].shape[2]))
    assert sizes == [(5, t // 4 * 2) for t in range(1, 14)]


@pytest.mark.parametrize(
    ("pattern", "width", "heads", "options", "extra"),
    [
        ("NS", 256, 2, {"num_landmarks": 64, "conv_kernel_size": 5}, 33_930),
        ("NS", 512, 8, {}, 67_712),
        ("CS", 256, 2, {}, 132_354),
        ("CS", 512, 8, {"window_size": 16}, 529_928),
    ],
)
def test_parameters_are_the_published_ones(
    pattern: str, width: int, heads: int, options: dict[str, int], extra: int
) -> None:
    """Beyond the four biased projections."""
    module = build_attention("longshort", pattern=pattern, embed_dim=width, num_heads=heads, **options)
    assert sum(p.numel() for p in module.parameters()) == 4 * width**2 + 4 * width + extra


@pytest.mark.parametrize("options", [{"window_size": 6, "chunk_size": 4, "chunk_rank": 3}, {"window_size": 3}])
def test_blocks_across_chunks(options: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The form of a GPU: outputs, gradients, decoding onto slots, dropout."""
    monkeypatch.setattr(window_attention, "_extents", lambda query, *_: (50, query.shape[2]))
    module = agreement.make("longshort", "CS", **options)
    agreement.assert_forms_agree(module, 71, 71)
    agreement.assert_decodes(module, 43, 43, (9, 1, 30))
    agreement.assert_dropout(agreement.make("longshort", "CS", dropout=0.3, **options), 43)
