"""Synthesizer: every variant's readable form, causality, decoding, padding; softmax attention."""

from __future__ import annotations

import pytest
import torch

from cab import UserError, build_attention
from tests.attentions.agreement import (
    make,
)


def test_a_step_beyond_the_length_is_refused_and_holes_in_the_cache_do_not_count() -> None:
    module = make("synthesizer", "CS", variant="random", max_length=4).eval()
    x = torch.randn(1, 1, 24, dtype=torch.float64)
    state = module.init_state(1, dtype=torch.float64)
    for _ in range(3):
        _, state = module.prefill(x, state, query_padding_mask=torch.ones(1, 1, dtype=torch.bool))
    for _ in range(4):
        _, state = module.step(x, state)
    with pytest.raises(UserError, match=r"increase attention\.max_length"):
        module.step(x, state)


def test_without_random_scores_random_plus_is_softmax_attention() -> None:
    module = build_attention(
        "synthesizer", pattern="CS", embed_dim=24, num_heads=3, variant="random_plus", max_length=20
    )
    vanilla = build_attention("vanilla", pattern="CS", embed_dim=24, num_heads=3)
    vanilla.load_state_dict(module.state_dict(), strict=False)
    x = torch.randn(2, 20, 24)
    torch.testing.assert_close(module(x), vanilla(x))


@pytest.mark.parametrize(("pattern", "sizes"), [("NS", (9,)), ("NC", (3, 9)), ("CC", (9, 3))])
def test_it_is_defined_up_to_its_length(pattern: str, sizes: tuple[int, ...]) -> None:
    module = make("synthesizer", pattern, variant="factorized_random", max_length=8)
    inputs = [torch.zeros(1, size, 24, dtype=torch.float64) for size in sizes]
    with pytest.raises(UserError, match=r"increase attention\.max_length"):
        module(*inputs, *inputs[1:])
