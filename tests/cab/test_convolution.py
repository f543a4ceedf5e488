"""Short convolutions as an option of every layer that computes from projected heads."""

import pytest
import torch

from attentions.bases.recurrent import Recurrent
from cab import UserError, build_attention
from cab.convolution import ShortConvolution
from cab.registry.registries import ATTENTIONS
from tests.helpers.attentions.agreement import (
    assert_causal,
    assert_decodes,
    assert_forms_agree,
    assert_padding_is_nothing,
    make,
)

WITHOUT = {"fnet", "flash_gau", "flash_quad", "mla", "none", "s4", "s4d", "transnormer_t1", "transnormer_t2"} | {
    *("logsparse", "reformer", "routing"),
}
"""Layers without projected heads, or with a convolution or weights shared by queries and keys."""

PUBLISHED_WITH = {"comba", "deltanet", "deltaproduct", "gated_deltanet", "gated_deltanet_2", "kda", "ssd"}

WITHOUT_OWN_TOKEN = ("diag_attention", "mca", "stick_breaking")

CASES = [
    pytest.param(entry.name, str(pattern), marks=pytest.mark.slow if pattern == "NS" and "CS" in entry.patterns else ())
    for entry in ATTENTIONS
    if "short_convolution" in entry.options
    for pattern in entry.patterns
    if not pattern.is_cross
]
"""Those of pattern NS that have CS as well are slow: the heads of both are computed by the same code."""


def test_layers_with_the_option_and_their_defaults():
    defaults = {entry.name: entry.options.get("short_convolution") for entry in ATTENTIONS}
    assert {name for name, size in defaults.items() if size is None} == WITHOUT
    assert {name: size for name, size in defaults.items() if size} == dict.fromkeys(PUBLISHED_WITH, 4)
    gated = {entry.name for entry in ATTENTIONS if "output_gate" in entry.options}
    assert gated == {n for n in set(defaults) - WITHOUT if not issubclass(ATTENTIONS.get(n).cls, Recurrent)} | {"mla"}


def test_readable_convolution():
    convolution = ShortConvolution(3, 5, 4, bias=True).double()
    x = torch.randn(2, 3, 9, 5, dtype=torch.float64)
    output, last = convolution(x, convolution.init_decode_state(2, x), None)
    torch.testing.assert_close(convolution.reference(x), output)
    assert torch.equal(last, x[:, :, -3:])


@pytest.mark.parametrize(("name", "pattern"), CASES)
def test_any_layer_with_a_short_convolution(name, pattern):
    """Outputs, gradients, padding and decoding, and the previous token has an effect on the heads."""
    module = make(name, pattern, short_convolution=3).eval()
    assert_forms_agree(module, 29, 29)
    assert_padding_is_nothing(module, 11, 11)
    if pattern == "CS" and name not in WITHOUT_OWN_TOKEN:
        assert_causal(module, 9)
    if pattern == "CS":
        assert_decodes(module, 19, 19, (6, 3, 1))


@pytest.mark.parametrize(
    ("name", "pattern", "size"),
    [
        ("vanilla", "NC", 4),
        ("vanilla", "CC", 4),
        ("vanilla", "CS", 1),
        ("gla", "CS", 1),
        ("linear", "NS", -1),
        ("fnet", "NS", 4),  # a layer without heads
    ],
)
def test_refused(name, pattern, size):
    with pytest.raises(UserError, match="short_convolution"):
        build_attention(name, pattern=pattern, embed_dim=24, num_heads=3, short_convolution=size)
