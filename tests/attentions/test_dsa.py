"""The loss of the indexer, its scores and its initial weights."""

import pytest
import torch
from torch import nn

from attentions.bases.indexer import divergence
from cab import build_attention
from tests.helpers.attentions.agreement import WIDTH, make

BLOCKS = {"block_size": 4, "top_k": 3}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("dsa", options) for options in ({"top_k": 4}, {"scorer": "qsa", **BLOCKS}, {"scorer": "msa", **BLOCKS})),
        ("mla", {"top_k": 4, "query_rank": 5}),
    ],
)
def test_loss_trains_the_indexer_alone(name, options):
    module = make(name, "CS", **options).train()
    x = torch.randn(2, 40, WIDTH, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam(module.indexer.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        module(x)
        loss = module.auxiliary_loss()
        assert loss is not None
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    assert losses[-1] < 0.8 * losses[0]
    assert x.grad is None
    trained = {name for name, parameter in module.named_parameters() if parameter.grad is not None}
    assert trained == {f"indexer.{name}" for name, _ in module.indexer.named_parameters()}


@pytest.mark.parametrize(("options", "weight"), [({}, 1.0), ({"indexer_loss": 2.0}, 2.0)])
def test_loss_is_the_divergence_of_shares(options, weight):
    """KL(p || softmax(I)) of chosen tokens, p the mean weight of the heads, in readable form."""
    module = make("dsa", "CS", top_k=3, **options).train()
    x = torch.randn(1, 9, WIDTH, dtype=torch.float64)
    module(x)
    indexer, position = module.indexer, torch.arange(9)[None]
    queries = indexer.queries(module.query_side_inputs(x)["index_query"], position)[0]
    keys = indexer.keys(module.key_side_inputs(x)["index_key"], position)[0]
    q, k, _ = (heads[0] for heads in module.project(x, x, x))
    losses = []
    for t in range(9):
        scores = torch.cat([indexer.block_score(queries[:, t], keys[:, s : s + 1], s) for s in range(t + 1)])
        chosen = scores.argsort(descending=True, stable=True)[:3]
        weights = (q[:, t] * k[:, chosen].transpose(0, 1) * module.scale).sum(dim=-1).softmax(dim=0).mean(dim=1)
        losses.append((weights * (weights.log() - scores[chosen].log_softmax(dim=0))).sum())
    torch.testing.assert_close(module.auxiliary_loss(), weight * torch.stack(losses).mean())


def test_shares_of_a_small_mass():
    """The mass of the chosen blocks is divided by its sum, which is small where the open block takes the rest."""
    weights, scores = torch.rand(2, 4, 5, 7).double(), torch.randn(2, 1, 5, 7).double()
    taken = torch.ones_like(scores, dtype=torch.bool)
    torch.testing.assert_close(divergence(1e-9 * weights, scores, taken, 1), divergence(weights, scores, taken, 1))


@pytest.mark.parametrize(("scorer", "score"), [("dsa", (4 * 32) ** 0.5), ("qsa", 4 * 32**0.5), ("msa", 32.0)])
def test_scale_of_scores(scorer, score):
    """Scores of ones, which the loss of the indexer depends on, but no output."""
    indexer = make("dsa", "CS", scorer=scorer, index_heads=4, index_dim=32).indexer
    nn.init.ones_(indexer.key_norm.weight)
    queries, keys = torch.ones(1, indexer.heads, 1, 32 + (scorer == "dsa")), torch.ones(1, 1, 1, 32)
    found = indexer.products(queries, indexer.pooled(keys)).flatten()
    torch.testing.assert_close(found, torch.full_like(found, score))
    torch.testing.assert_close(indexer.block_score(queries[0, :, 0], keys[0], 0), found)


def test_initial_weights_of_the_indexer():
    """Uniform in -1/sqrt(D) to 1/sqrt(D), as torch's linear maps."""
    indexer = build_attention("dsa", pattern="CS", embed_dim=64, num_heads=4).indexer
    for linear in (indexer.query, indexer.key, indexer.weight):
        assert 0.11 < linear.weight.abs().max().item() <= 1 / 8
