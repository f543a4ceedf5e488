"""The template of attentions: a method's own hooks get the same in training, in the readable form and in decoding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from cab import Attention, LayerPosition, PaddingMasks, Pattern, UserError, build_attention, build_backbone
from cab.padding import lengths
from cab.registry.build import state_bytes
from cab.registry.registries import ATTENTIONS, register_attention
from tests.attentions.agreement import assert_causal, assert_decodes, assert_forms_agree, assert_padding_is_nothing
from tests.cab.verification.sound_learning import Deep, Gated

WIDTH, HEADS = 24, 3


class Recomputed(Gated):
    """The same without decoding of its own."""

    has_constant_size_state = False
    init_decode_state = None
    encode_source = None


def gated(cls: type[Attention], pattern: str) -> Attention:
    return cls(pattern=pattern, embed_dim=WIDTH, num_heads=HEADS).double()


@pytest.mark.parametrize("pattern", list(Pattern))
def test_extras_agree_with_the_readable_form(pattern: Pattern) -> None:
    assert_forms_agree(gated(Gated, pattern), 13, 9)
    assert_padding_is_nothing(gated(Gated, pattern), 13, 9)


@pytest.mark.parametrize("cls", [Gated, Recomputed])
@pytest.mark.parametrize("pattern", [Pattern.CS, Pattern.CC])
def test_extras_reach_decoding(cls: type[Attention], pattern: Pattern) -> None:
    assert_decodes(gated(cls, pattern), 11, 7, (4, 1))


def test_extras_see_no_later_token() -> None:
    assert_causal(gated(Gated, "CS"), 9)


def test_state_is_measured_by_decoding() -> None:
    constant, recomputed = gated(Gated, "CS"), gated(Recomputed, "CS")
    assert state_bytes(constant, 5) == state_bytes(constant, 50) == WIDTH * (WIDTH // HEADS + 1) * 8
    assert state_bytes(recomputed, 50) - state_bytes(recomputed, 49) == WIDTH * 8 + 1


class Noisy(Attention):
    """v plus noise that both forms are handed."""

    def sample_noise(self, query: Tensor, _key: Tensor, _padding: PaddingMasks) -> dict[str, Tensor]:
        return {"noise": torch.randn(len(query), self.num_heads, 1, self.head_dim, dtype=query.dtype)}

    def attend(self, _query: Tensor, _key: Tensor, value: Tensor, _padding: PaddingMasks, *, noise: Tensor) -> Tensor:
        return value + noise

    def reference(self, _query: Tensor, _key: Tensor, value: Tensor, *, noise: Tensor) -> Tensor:
        return value + noise


def test_both_forms_draw_the_same() -> None:
    module = Noisy(pattern="NS", embed_dim=WIDTH, num_heads=HEADS)
    x = torch.randn(3, 5, WIDTH)
    outputs = []
    for module.use_reference in (False, True):
        torch.manual_seed(3)
        outputs.append(module(x))
    torch.testing.assert_close(*outputs)


@pytest.fixture
def registered() -> Iterator[None]:
    register_attention("deep", patterns="NS CS NC CC", complexity="n^2", paper="a test")(Deep)
    yield
    del ATTENTIONS._entries["deep"]


@pytest.mark.usefixtures("registered")
def test_an_attention_learns_its_depth() -> None:
    alone = build_attention("deep", pattern="CS", embed_dim=WIDTH, num_heads=HEADS)
    assert alone.layer_position == LayerPosition(0, 1)
    third = build_attention("deep", pattern="CS", embed_dim=WIDTH, num_heads=HEADS, layer_position=LayerPosition(2, 5))
    assert third.layer_position == LayerPosition(2, 5)
    network = build_backbone(
        "gpt2", attention="deep", pattern="CS", embed_dim=WIDTH, num_heads=HEADS, num_layers=3, vocab_size=11
    )
    slots = [network.get_submodule(path) for path, _ in network.attention_layers()]
    assert [slot.layer_position for slot in slots] == [LayerPosition(i, 3) for i in range(3)]


def test_lengths_count_real_tokens() -> None:
    hidden = torch.tensor([[False, True, False], [True, True, True]])
    assert lengths(torch.zeros(2, 3, 4), hidden).tolist() == [2, 0]
    assert lengths(torch.zeros(2, 7, 3, 4), None).tolist() == [3, 3]


def test_step_refuses_more_than_a_token() -> None:
    module = gated(Gated, "CS")
    with pytest.raises(UserError, match="reads one token"):
        module.step(torch.zeros(2, 2, WIDTH), module.init_state(2))


class OneHead(Gated):
    """Its ``attend`` returns one head too few."""

    def attend(self, *heads: Any, **more: Any) -> Tensor:
        return super().attend(*heads, **more)[:, 1:]


def test_a_wrong_shape_of_heads_names_attend_and_the_expected_shape() -> None:
    expected = re.escape(f"OneHead.attend must return [B, H, N, E] with B = 2, N = 3 and H E = {WIDTH}, got [2, ")
    with pytest.raises(UserError, match=expected):
        OneHead(pattern="CS", embed_dim=WIDTH, num_heads=HEADS)(torch.zeros(2, 3, WIDTH))
