"""Claims about single attentions: windows, lengths, convolutions, centers."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from attentions.kernels import window_attention
from attentions.kernels.layers import BLOCK, depthwise_conv
from cab import UserError
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
def test_window(pattern: str, options: dict[str, object], first: int, last: int) -> None:
    """By gradient: exactly the keys from ``first`` to ``last`` count, as far as there are any."""
    module = agreement.make("local", pattern, **options)
    x = torch.randn(1, 71, agreement.WIDTH, dtype=torch.float64, requires_grad=True)
    output = module(x)
    for i in (0, 1, 37, 63, 64, 69, 70):
        (gradient,) = torch.autograd.grad(output[0, i].sum(), x, retain_graph=True)
        seen = gradient[0].any(dim=-1).nonzero().flatten().tolist()
        assert seen == list(range(max(0, i + first), min(70, i + last) + 1))


@pytest.mark.parametrize("options", [{"window_size": 6, "chunk_size": 4}, {"window_size": 3}])
def test_blocks_across_chunks(options: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The form of a GPU: outputs, gradients, decoding onto slots, dropout."""
    monkeypatch.setattr(window_attention, "_extents", lambda query, *_: (50, query.shape[2]))
    module = agreement.make("longshort", "CS", **options)
    agreement.assert_forms_agree(module, 71, 71)
    agreement.assert_decodes(module, 43, 43, (9, 1, 30))
    agreement.assert_dropout(agreement.make("longshort", "CS", dropout=0.3, **options), 43)


def test_a_step_beyond_the_length_is_refused_and_holes_in_the_cache_do_not_count() -> None:
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
def test_equals_conv2d(length: int, taps: int) -> None:
    torch.manual_seed(length * 100 + taps)
    x = torch.randn(2, length, 3, 4, dtype=torch.float64).transpose(1, 2).requires_grad_()
    weight = torch.randn(3, 1, taps, 1, dtype=torch.float64, requires_grad=True)
    results = []
    for y in (depthwise_conv(x, weight), F.conv2d(x, weight, padding=(taps // 2, 0), groups=3)):
        results.append([y, *torch.autograd.grad(y.sin().sum(), [x, weight])])
    torch.testing.assert_close(*results)
    exact = F.conv2d(x.float(), weight.float(), padding=(taps // 2, 0), groups=3)
    half = depthwise_conv(x.bfloat16(), weight)
    assert half.dtype is torch.bfloat16
    torch.testing.assert_close(half.float(), exact, atol=0.2, rtol=0.05)


def test_centers_learn() -> None:
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


def test_centers_of_inputs_learn() -> None:
    """By 1 - decay to the mean of their tokens, which at decay 0 is k-means."""
    module = agreement.make("cluster_former", "NS", num_clusters=2, decay=0.0).train()
    x = torch.randn(1, 30, agreement.WIDTH, dtype=torch.float64)
    x[0, :15, 0], x[0, 15:, 0] = 9.0, -9.0
    module.centroids.zero_()[:, 0] = torch.tensor([1.0, -1.0])
    module(x)
    after_optimizer_step(module)
    torch.testing.assert_close(module.centroids, torch.stack([x[0, :15].mean(dim=0), x[0, 15:].mean(dim=0)]))
