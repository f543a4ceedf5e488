"""Stacks outside a network: the sum of their attentions, in training, in the readable form and in decoding."""

from typing import Any

import pytest
import torch

from cab import LayerPosition, build_attention
from tests.helpers.attentions.agreement import (
    HEADS,
    WIDTH,
    assert_causal,
    assert_decodes,
    assert_forms_agree,
    assert_padding_is_nothing,
    make,
)

PARALLEL = {"local": {"window_size": 5}, "linear": {"kernel": "elu1"}}
STACKS = [
    ("local+linear", "NS", PARALLEL),
    ("local+linear", "CS", PARALLEL),
    ("abc+vanilla", "CC", {"abc": {"num_landmarks": 4}}),
    ("linear*2,vanilla", "NC", {}),
    ("gla,local+vanilla", "CS", {"local": {"window_size": 3}}),
    ("fnet,vanilla", "NS", {}),  # it has no heads
]


@pytest.mark.parametrize(("name", "pattern", "options"), STACKS)
def test_a_stack_keeps_the_contract_of_an_attention(name, pattern, options):
    module = make(name, pattern, **options)
    assert_forms_agree(module, 11, 7)
    assert_padding_is_nothing(module, 11, 7)
    if pattern == "CS":
        assert_causal(module, 11)
    if pattern in ("CS", "CC"):
        assert_decodes(module, 11, 7, (4, 1))


def test_a_layer_is_the_sum_of_its_attentions_and_a_stack_has_residual_connections():
    x = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    layer = make("local+linear", "CS")
    stack = make("local,linear", "CS")
    local, linear = layer.layers[0]
    torch.testing.assert_close(layer(x), local(x) + linear(x))
    (local,), (linear,) = stack.layers
    torch.testing.assert_close(stack(x), local(x) + linear(x + local(x)))


def test_parts_get_their_options_and_the_position_of_their_layer():
    def build(index: int, name: str = "differential*2,diag_attention+differential") -> Any:
        options = {"diag_attention": {"block_size": 3}} if "+" in name else {}
        options |= {"embed_dim": WIDTH, "num_heads": HEADS, "layer_position": LayerPosition(index, 6)}
        return build_attention(name, pattern="CS", **options)

    alone = build(4, "differential")
    assert (type(build(4)), build(4).initial) == (type(alone), alone.initial)
    blocks, differential = build(5).layers[0]
    assert blocks.block_size == 3
    assert differential.initial > alone.initial


def test_the_state_of_a_composite_has_constant_size_if_those_of_its_parts_have():
    assert make("gla+linear", "CS").has_constant_size_state
    assert not make("gla+vanilla", "CS").has_constant_size_state
