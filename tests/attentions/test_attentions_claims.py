"""Claims about single attentions: windows, lengths, convolutions, centers, landmarks, hashes, sums that grow."""

import functools
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from attentions import yoso as collisions
from attentions.kernels import window_attention
from attentions.kernels.layers import BLOCK, depthwise_conv
from attentions.transnormer import DiagAttention
from cab import PaddingMasks, UserError, build_attention, build_backbone
from cab.training import after_optimizer_step
from tests.helpers.attentions import agreement


@pytest.mark.parametrize(
    ("pattern", "options", "first", "last"),
    [
        ("NS", {"window_size": 5}, -2, 2),
        ("NS", {"window_size": 4}, -2, 1),
        ("NS", {"window_size": 3, "extent": "per_side"}, -3, 3),
        ("CS", {"window_size": 5}, -1, 0),
        ("CS", {"window_size": 1}, 0, 0),
        ("CS", {"window_size": 5, "extent": "per_side"}, -4, 0),
    ],
)
def test_window(pattern, options, first, last):
    """Exactly the keys from ``first`` to ``last`` count, as far as there are any."""
    module = agreement.make("local", pattern, **options)
    for i in (0, 1, 37, 63, 64, 69, 70):
        assert agreement.seen(module, i, 71) == list(range(max(0, i + first), min(70, i + last) + 1))


@pytest.mark.parametrize("options", [{"window_size": 6, "chunk_size": 4}, {"window_size": 3}])
def test_blocks_across_chunks(options, monkeypatch):
    """The form of a GPU: outputs, gradients, decoding onto slots, dropout."""
    monkeypatch.setattr(window_attention, "_extents", lambda query, *_: (50, query.shape[2]))
    module = agreement.make("longshort", "CS", **options)
    agreement.assert_forms_agree(module, 71, 71)
    agreement.assert_decodes(module, 43, 43, (9, 1, 30))
    agreement.assert_dropout(agreement.make("longshort", "CS", dropout=0.3, **options), 43)


def test_a_step_beyond_the_length_is_refused_and_holes_in_the_cache_do_not_count():
    module = agreement.make("synthesizer", "CS", variant="random", max_length=4).eval()
    x = torch.randn(1, 1, 24, dtype=torch.float64)
    state = module.init_state(1, dtype=torch.float64)
    for _ in range(3):
        _, state = module.prefill(x, state, query_padding_mask=torch.ones(1, 1, dtype=torch.bool))
    for _ in range(4):
        _, state = module.step(x, state)
    with pytest.raises(UserError, match=r"increase attention\.max_length"):
        module.step(x, state)


@pytest.mark.parametrize(("length", "taps"), [(1, 3), (5, 35), (BLOCK, 5), (BLOCK + 1, 1), (3 * BLOCK + 7, 35)])
def test_equals_conv2d(length, taps):
    torch.manual_seed(length * 100 + taps)
    x = torch.randn(2, length, 3, 4, dtype=torch.float64).transpose(1, 2)
    weight = torch.randn(3, 1, taps, 1, dtype=torch.float64)
    conv2d = functools.partial(F.conv2d, padding=(taps // 2, 0), groups=3)
    torch.testing.assert_close(*(agreement.with_gradients(form, (x, weight)) for form in (depthwise_conv, conv2d)))
    exact = conv2d(x.float(), weight.float())
    half = depthwise_conv(x.bfloat16(), weight)
    assert half.dtype is torch.bfloat16
    torch.testing.assert_close(half.float(), exact, atol=0.2, rtol=0.05)


def test_centers_learn():
    """By 1 - decay towards the sum of their tokens, made of mean 0 and variance 1; those without tokens stay."""
    module = agreement.make("routing", "CS", num_clusters=3, local_heads=False, decay=0.75).train()
    before = module.centroids.clone()
    x = torch.randn(1, 2, agreement.WIDTH, dtype=torch.float64)
    module(x)
    routed = module.project(x, x, x)[0][0]
    after_optimizer_step(module)
    for head in range(agreement.HEADS):
        nearest = (routed[head] @ before[head].T).argmax(dim=-1)
        for cluster in range(3):
            own = routed[head][nearest == cluster]
            expected = before[head, cluster]
            if len(own):
                expected = 0.75 * expected + 0.25 * F.layer_norm(own.sum(dim=0), (module.head_dim,))
            torch.testing.assert_close(module.centroids[head, cluster], expected)


def test_centers_of_inputs_learn():
    """By 1 - decay to the mean of their tokens, which at decay 0 is k-means."""
    module = agreement.make("cluster_former", "NS", num_clusters=2, decay=0.0).train()
    x = torch.randn(1, 30, agreement.WIDTH, dtype=torch.float64)
    x[0, :15, 0], x[0, 15:, 0] = 9.0, -9.0
    module.centroids.zero_()[:, 0] = torch.tensor([1.0, -1.0])
    module(x)
    after_optimizer_step(module)
    torch.testing.assert_close(module.centroids, torch.stack([x[0, :15].mean(dim=0), x[0, 15:].mean(dim=0)]))


def test_landmarks_are_tokens_where_their_places_are_rounded():
    """The last place, 0.999, is 1 in bfloat16: the landmark is the last token of each row."""
    module: Any = build_attention("skyformer", pattern="CC", embed_dim=16, num_heads=2, num_landmarks=2)
    module.places.copy_(torch.tensor([0.0, 0.999]))
    source = torch.randn(2, 131, 16).bfloat16()
    hidden = (torch.arange(131) >= torch.tensor([[131], [9]])).expand(2, 131)
    state = module.bfloat16().init_state(2, key=source, value=source, key_padding_mask=hidden)
    keys = module.project(source, source, source)[1].float()
    expected = torch.stack([keys[0][:, [0, 130]], keys[1][:, [0, 8]]])
    torch.testing.assert_close(state["landmarks"], expected, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("name", "pattern", "options"),
    [("abc", "CS", {}), ("efficient", "CS", {}), *(("scatterbrain", p, {"window": 2}) for p in ("NS", "CS"))],
)
def test_weights_that_grow_beyond_every_float(name, pattern, options):
    """Logits that rise by hundreds along the sequence: no output and no gradient is NaN."""
    module = agreement.make(name, pattern, **options)
    x = torch.randn(1, 100, 24, dtype=torch.float64) * torch.linspace(1, 1000, 100, dtype=torch.float64).view(-1, 1)
    output = module(x.requires_grad_())
    gradients = torch.autograd.grad(output.sum(), [x, *module.parameters()])
    assert all(tensor.isfinite().all() for tensor in (output, *gradients))


@pytest.mark.parametrize("name", ["yoso", "yoso_e"])
@pytest.mark.parametrize(("count", "tau"), [(1, 1), (2, 1), (3, 2), (512, 9), (513, 10), (1024, 10), (4000, 12)])
def test_hashes_are_as_long_as_in_the_released_configurations(name, count, tau):
    assert agreement.make(name, "NS").length_of_hash(torch.tensor([count])).tolist() == [tau]


@pytest.mark.parametrize("share", [0.0, 0.9])
def test_both_ways_to_weight_collisions_agree(share, monkeypatch):
    """Of pairs that collide, in several pieces, and of all pairs; with padding, and with one crowded bucket."""
    codes = [torch.randint(0, 8, (4, 3, n)) for n in (19, 23)]
    for code in codes:
        code[torch.rand(code.shape) < share] = 2
        code[:, 1, 11:] = 8
    left, right, x = (torch.randn(3, n, 5, dtype=torch.float64) for n in (19, 23, 23))
    same = (codes[0].unsqueeze(3) == codes[1].unsqueeze(2)) & (codes[0].unsqueeze(3) < 8)
    expected = (left @ right.mT * same.sum(dim=0)) @ x
    torch.testing.assert_close(collisions._bucket_sums(*codes, x, 8), (same.sum(dim=0).double() @ x))
    monkeypatch.setattr(collisions, "PAIRS", 13)
    for factor in (0, 10**6):
        monkeypatch.setattr(collisions, "SPARSE", factor)
        torch.testing.assert_close(collisions._weighted_sums(*codes, left, right, x, 8), expected)


def test_sums_of_nearly_opposite_keys_still_give_a_unit_vector():
    """Of YOSO's weights 1e-9 are left there, below the norm at which vectors are divided."""
    torch.testing.assert_close(collisions.unit_sum(torch.tensor([[3e-9, 4e-9]])), torch.tensor([[0.6, 0.8]]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("pattern", ["NS", "CS"])
@pytest.mark.parametrize(
    ("name", "options"), [("diag_attention", {"block_size": 4, "weights": "rela"}), ("norm_attention", {})]
)
def test_sums_that_nothing_divides_do_not_overflow(name, options, pattern, dtype):
    """Heads of 100 have weights of 1e4 and sums of 1e6.

    Autocast keeps outputs within 3, gradients within 6 units of rounding of float32's of the same rounded heads.
    """
    module = build_attention(name, pattern=pattern, embed_dim=64, num_heads=2, **options)
    heads = [100 * torch.randn(2, 2, 30, 32) for _ in range(3)]
    results = []
    for kind in (torch.float32, dtype):
        leaves = [x.to(dtype).to(kind).requires_grad_() for x in heads]
        with torch.autocast("cpu", dtype, enabled=kind is dtype):
            output = module.attend(*leaves, PaddingMasks())
        assert output.dtype is kind
        weights = torch.linspace(-1, 1, output.numel()).view_as(output).cos()
        results.append([output, *torch.autograd.grad((output.float() * weights).sum(), leaves)])
    for units, wanted, got in zip((3, 6, 6, 6), *results, strict=True):
        assert (got - wanted).abs().max() <= units * torch.finfo(dtype).eps * wanted.abs().max()


@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_the_early_half_is_diagonal(count):
    """The middle layer of an odd number is late; in a network each of them fills one slot."""
    network = build_backbone(
        "gpt2", attention="transnormer_t2", pattern="CS", vocab_size=9, embed_dim=8, num_heads=2, num_layers=count
    )
    assert len(network.attention_layers()) == count
    slots = [network.get_submodule(path) for path, _ in network.attention_layers()]
    early = [isinstance(slot.form, DiagAttention) for slot in slots]
    assert early == [True] * (count // 2) + [False] * (count - count // 2)
