"""Memory-compressed attention: groups, the tokens before the first, decoding."""

from __future__ import annotations

import torch

from tests.attentions import agreement


def test_causal() -> None:
    """A token sees the groups that have ended with it or before, the first ones the first token."""
    module = agreement.make("mca", "CS")
    x = torch.randn(1, 20, agreement.WIDTH, dtype=torch.float64, requires_grad=True)
    output = module(x)
    for i in range(20):
        (gradient,) = torch.autograd.grad(output[0, i].sum(), x, retain_graph=True)
        seen = (gradient[0].abs().amax(dim=-1) > 1e-9).nonzero().flatten().tolist()
        groups = set(range((i + 1) // 3 * 3)) or {0}
        assert set(seen) == (groups if len(groups) <= 3 else groups | {i})  # over one group the query does not count
