"""The window kernel: FlexAttention's tiles and mask against the block form."""

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask, flex_attention

from attentions.kernels import window_attention as kernels
from attentions.kernels.window_attention import Window, by_blocks, by_flex, flex_tiles, flex_works, window_attention

WINDOWS = [Window(3, 0), Window(0, 0, offset=9), Window(130, 5), Window(7, 7, segment=15), Window(400, 400)]
CPU = torch.device("cpu")


def dense_flex(query: Tensor, key: Tensor, value: Tensor, *, block_mask: BlockMask) -> Tensor:
    """What FlexAttention computes, with gradients, which it has on CUDA only."""
    mask = create_mask(block_mask.mask_mod, len(query), 1, query.shape[2], key.shape[2], device="cpu")
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask)


@pytest.fixture
def flex_on_cpu(monkeypatch):
    monkeypatch.setattr(kernels, "compiled_flex", lambda: dense_flex)
    monkeypatch.setattr(kernels, "_flex_works", {})


@pytest.mark.parametrize("num_slots", [0, 5, 140])
@pytest.mark.parametrize("window", WINDOWS)
def test_tiles_hold_every_visible_key(window, num_slots):
    length, num_keys = 301, 301 + window.offset + num_slots
    tiles = flex_tiles(window, length, num_keys, num_slots, None, CPU)
    wanted = create_block_mask(tiles.mask_mod, 1, 1, length, num_keys, device="cpu")
    assert torch.equal(tiles.to_dense() != 0, wanted.to_dense() != 0)


@pytest.mark.usefixtures("flex_on_cpu")
@pytest.mark.parametrize("num_slots", [0, 5])
@pytest.mark.parametrize("window", WINDOWS)
def test_flex_agrees_with_blocks(window, num_slots):
    query = torch.randn(2, 3, 140, 16, dtype=torch.float64, requires_grad=True)
    key, value = torch.randn(2, 2, 3, 140 + window.offset, 16, dtype=torch.float64, requires_grad=True).unbind()
    padding = torch.zeros(2, 140 + window.offset, dtype=torch.bool)
    padding[1, 100:] = True
    real = ~padding[:, window.offset :, None].expand(2, 140, 16).unsqueeze(1)
    leaves, slots, results = [query, key, value], None, []
    if num_slots:
        slots = kernels.Slots(*torch.randn(2, 2, 3, num_slots, 16, dtype=torch.float64, requires_grad=True).unbind())
        leaves += slots[:2]
    for form in (by_flex, by_blocks):
        output = form(query, key, value, window, slots=slots, key_padding_mask=padding).where(real, 0.0)
        results.append([output, *torch.autograd.grad(output.sin().sum(), leaves)])
    for flex, blocks in zip(*results, strict=True):
        torch.testing.assert_close(flex, blocks)


@pytest.mark.filterwarnings("ignore:.*without torch.compile:UserWarning", "ignore::DeprecationWarning")
def test_flex_takes_the_tiles():
    query, key, value = torch.randn(3, 2, 3, 150, 16).unbind()
    output = flex_attention(query, key, value, block_mask=flex_tiles(Window(20, 3), 150, 150, 0, None, CPU))
    torch.testing.assert_close(output, by_blocks(query, key, value, Window(20, 3)))


@pytest.mark.usefixtures("flex_on_cpu")
def test_flex_is_used_only_where_it_works(monkeypatch):
    """Each form of attention is tried: one may compile where another does not."""
    assert flex_works("window", CPU, torch.float32, 16)
    monkeypatch.setattr(kernels, "compiled_flex", lambda: None)
    assert not flex_works("window", CPU, torch.float32, 18)


@pytest.mark.usefixtures("flex_on_cpu")
def test_question_is_a_constant_to_the_compiler():
    """Answered before; while it compiles, nothing is tried."""

    @torch.compile(fullgraph=True, backend="eager")
    def double_where_it_works(x: Tensor) -> Tensor:
        return x * 2.0 if flex_works("window", x.device, x.dtype, x.shape[-1]) else x

    assert flex_works("window", CPU, torch.float32, 16)
    torch.testing.assert_close(double_where_it_works(torch.ones(2, 16)), torch.full((2, 16), 2.0))
    other = torch.ones(2, 16, dtype=torch.float64)
    torch.testing.assert_close(double_where_it_works(other), other)
    assert len(kernels._flex_works) == 1


def test_many_rows_have_smaller_blocks(monkeypatch):
    query, key, value = torch.randn(3, 2, 3, 140, 8, dtype=torch.float64).unbind()
    expected = window_attention(query, key, value, Window(20, 3))
    monkeypatch.setattr(kernels, "LARGEST", 2000)
    torch.testing.assert_close(window_attention(query, key, value, Window(20, 3)), expected)


def test_half_precision_forms_its_logits_in_float32():
    """Logits of 16 are 0.125 apart in bfloat16, which would be an error of 6% in a weight."""
    torch.manual_seed(1)
    query, key, value = (4 * torch.randn(3, 1, 2, 150, 16)).bfloat16().unbind()
    exact = by_blocks(query.float(), key.float(), value.float(), Window(20, 3))
    assert (by_blocks(query, key, value, Window(20, 3)).float() - exact).norm() / exact.norm() < 3e-3


@pytest.mark.parametrize("offset", [0, 40])
def test_keys_that_no_window_reaches_have_no_gradient(offset):
    """Before the first window, and after the last one."""
    query = torch.randn(1, 2, 100, 4)
    key, value = (torch.randn(1, 2, 100 + offset + 200, 4, requires_grad=True) for _ in range(2))
    output = window_attention(query, key, value, Window(5, 2, offset=offset))
    for gradient in torch.autograd.grad(output.sin().sum(), [key, value]):
        assert not gradient[:, :, : max(offset - 5, 0)].any()
        assert not gradient[:, :, 100 + offset + 2 :].any()
        assert gradient[:, :, offset : offset + 100].ne(0).all()
