"""XCiT, Flowformer and FLASH: readable forms, decoding, what leaks, limits."""

from __future__ import annotations

import pytest
import torch

from attentions.gau import GatedAttentionUnit, GroupedUnit
from cab import UserError, build_attention
from tests.attentions.agreement import (
    make,
)


def test_flowformers_published_causal_cross_form_sees_later_targets() -> None:
    """It is the noncausal class, here pattern NC: the last target moves the first output. So no CC is registered."""
    module = make("flowformer", "NC")
    query = torch.randn(1, 6, 24, dtype=torch.float64, requires_grad=True)
    source = torch.randn(1, 9, 24, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(module(query, source, source)[0, 0].sum(), query)
    assert gradient[0, -1].abs().max() > 1e-6
    with pytest.raises(UserError):
        build_attention("flowformer", pattern="CC", embed_dim=24, num_heads=3)


def test_one_group_without_the_linear_part_is_the_quadratic_unit() -> None:
    """Their keys and queries turn in the one alone: at position 0 that is nothing."""
    grouped = make("flash_gau", "CS", query_key_dim=6, group_size=16)
    quadratic = make("flash_quad", "CS", query_key_dim=6, scale_length=16)
    assert isinstance(grouped, GroupedUnit)
    assert isinstance(quadratic, GatedAttentionUnit)
    for parameter in (grouped.gamma, grouped.beta):
        torch.nn.init.zeros_(parameter[2:])
    state = {name: x[:2] if name in ("gamma", "beta") else x for name, x in grouped.state_dict().items()}
    quadratic.load_state_dict(state)
    grouped.rotated_maps = lambda x, _place: grouped.maps(x)  # type: ignore[method-assign]
    x = torch.randn(2, 13, 24, dtype=torch.float64)
    torch.testing.assert_close(grouped(x), quadratic(x))
