"""Packed sequences: each gives what it gives alone, in groups that contain little padding."""

import pytest
import torch
from torch import Tensor

from attentions.softmax import VanillaAttention
from cab import Pattern, UserError
from cab.packing import _groups
from tests.cab.verification.planted.mutations import failures
from tests.cab.verification.planted.sound_learning import Sharpened

WIDTH = 8


def cumulative(*lengths: int) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def softmax(pattern: str) -> VanillaAttention:
    return VanillaAttention(pattern=pattern, embed_dim=WIDTH, num_heads=2).double()


@pytest.mark.parametrize("pattern", list(Pattern))
def test_each_sequence_gives_what_it_gives_alone(pattern):
    """Outputs, gradients, auxiliary losses, and prompts before decoding."""
    assert failures(Sharpened, pattern, ["packed"]) == {}


def test_no_targets_at_all():
    assert softmax("NS").forward_packed(torch.empty(0, WIDTH), query_cu_seqlens=cumulative(0, 0)).shape == (0, WIDTH)


def test_groups_contain_little_padding():
    lengths = [512, 500, 490, 90, 80, 7, 3, 0]
    assert list(_groups([(n, 0) for n in lengths])) == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (torch.tensor([0, 3, 2, 5]), "rise from 0 to the number of tokens, 5, got"),
        (torch.tensor([0, 4]), "rise from 0 to the number of tokens, 5, got"),
        (torch.tensor([1, 5]), "rise from 0 to the number of tokens, 5, got"),
        (torch.tensor([0.0, 5.0]), "must be integers"),
        (torch.tensor([[0, 5]]), "must be integers"),
    ],
)
def test_lengths_that_do_not_fit(lengths, message):
    with pytest.raises(UserError, match=message):
        softmax("NS").forward_packed(torch.zeros(5, WIDTH), query_cu_seqlens=lengths)


def test_sources_that_do_not_fit():
    module, x = softmax("NC"), torch.zeros(5, WIDTH)
    with pytest.raises(UserError, match="belong together"):
        module.forward_packed(x, x, x, query_cu_seqlens=cumulative(5))
    with pytest.raises(UserError, match="1 sequences and key_cu_seqlens 2"):
        module.forward_packed(x, x, x, query_cu_seqlens=cumulative(5), key_cu_seqlens=cumulative(2, 3))
