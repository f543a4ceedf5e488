"""The template of attentions: a method's own hooks get the same in training, in the readable form and in decoding."""

import pytest
import torch

from cab import Attention, LayerPosition, Pattern, UserError, build_attention, build_backbone
from cab.padding import lengths
from cab.registry.build import state_bytes
from cab.registry.registries import register_attention
from tests.cab.verification.planted.sound_learning import Deep, Gated
from tests.helpers.attentions.agreement import assert_decodes

WIDTH, HEADS = 24, 3


class Recomputed(Gated):
    """The same without decoding of its own."""

    has_constant_size_state = False
    init_decode_state = None
    encode_source = None


def gated(cls: type[Attention], pattern: str) -> Attention:
    return cls(pattern=pattern, embed_dim=WIDTH, num_heads=HEADS).double()


@pytest.mark.parametrize("cls", [Gated, Recomputed])
@pytest.mark.parametrize("pattern", [Pattern.CS, Pattern.CC])
def test_extras_reach_decoding(cls, pattern):
    assert_decodes(gated(cls, pattern), 11, 7, (4, 1))


def test_initial_weights_of_the_output_gate():
    """Xavier uniform with gain 1/sqrt(2), as the projections of queries, keys and values."""
    module = build_attention("linear", pattern="CS", embed_dim=64, num_heads=4, output_gate=True)
    bound = (3 / 128) ** 0.5
    for linear in (module.output_gate, module.q_proj):
        assert linear is not None
        assert 0.95 * bound < linear.weight.abs().max().item() <= bound


def test_state_is_measured_by_decoding():
    constant, recomputed = gated(Gated, "CS"), gated(Recomputed, "CS")
    assert state_bytes(constant, 5) == state_bytes(constant, 50) == WIDTH * (WIDTH // HEADS + 1) * 8
    assert state_bytes(recomputed, 50) - state_bytes(recomputed, 49) == WIDTH * 8 + 1


@pytest.mark.usefixtures("registers")
def test_an_attention_learns_its_depth():
    register_attention("deep", patterns="NS CS NC CC", complexity="n^2", paper="a test")(Deep)
    sizes = {"pattern": "CS", "embed_dim": WIDTH, "num_heads": HEADS}
    assert build_attention("deep", **sizes).layer_position == LayerPosition(0, 1)
    assert build_attention("deep", **sizes, layer_position=LayerPosition(2, 5)).layer_position == LayerPosition(2, 5)
    network = build_backbone("gpt2", attention="deep", **sizes, num_layers=3, vocab_size=11)
    slots = [network.get_submodule(path) for path, _ in network.attention_layers()]
    assert [slot.layer_position for slot in slots] == [LayerPosition(i, 3) for i in range(3)]


def test_lengths_count_real_tokens():
    hidden = torch.tensor([[False, True, False], [True, True, True]])
    assert lengths(torch.zeros(2, 3, 4), hidden).tolist() == [2, 0]
    assert lengths(torch.zeros(2, 7, 3, 4), None).tolist() == [3, 3]


def test_step_refuses_more_than_a_token():
    module = gated(Gated, "CS")
    with pytest.raises(UserError, match="reads one token"):
        module.step(torch.zeros(2, 2, WIDTH), module.init_state(2))
