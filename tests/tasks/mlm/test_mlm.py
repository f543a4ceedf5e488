"""MLM: which tokens are hidden, and the perplexity of those."""

import pytest
import torch
from torch.nn import functional as F

from tasks.corpus.facts import THINGS
from tasks.corpus.tokens import NUM_SPECIAL, PAD
from tests.helpers.tasks.layouts import write_books
from tests.helpers.tasks.records import Bigram, in_order, ready


def test_what_is_hidden(tmp_path):
    task = ready("mlm", write_books(tmp_path))
    tokens = torch.randint(NUM_SPECIAL, len(task.corpus.counts), (400, 50))
    tokens[:, 37:] = PAD
    seen, places = task.hide(tokens, torch.Generator().manual_seed(1))
    chosen = torch.zeros(tokens.numel(), dtype=torch.bool).index_fill(0, places, True).view_as(tokens)
    assert not chosen[:, 37:].any()
    assert torch.equal(seen[~chosen], tokens[~chosen])
    counts = chosen.sum(dim=1)
    assert set(counts.tolist()) == {5, 6}  # 15 percent of 37 is 5.55
    assert counts.float().mean().item() == pytest.approx(5.55, abs=0.08)
    for kind, share in ((torch.tensor(task.mask), 0.8), (tokens[chosen], 0.1)):
        assert (seen[chosen] == kind).float().mean().item() == pytest.approx(share, abs=0.03)
    assert seen[chosen & (seen != task.mask)].min() >= NUM_SPECIAL
    for seed in range(20):  # at least one of a short row
        assert task.hide(torch.tensor([[7, PAD, PAD]]), torch.Generator().manual_seed(seed))[1].tolist() == [0]


def test_perplexity_is_the_likelihood_of_the_hidden_tokens(tmp_path):
    """Of the test split, or as published of the validation split."""
    task = ready("mlm", write_books(tmp_path))
    backbone, expected = Bigram(task.mask + 1).eval(), {}
    for name in ("validation", "test"):
        generator, losses, pages = torch.Generator().manual_seed(0), [], task.splits[name]
        for indices in torch.arange(len(pages)).split(3):
            batch = pages.__getitems__(indices.tolist())
            seen, places = task.hide(batch, generator)
            logits = backbone.table.double()[seen.flatten()[places]]
            losses.append(F.cross_entropy(logits, batch.flatten()[places], reduction="none"))
        expected[name] = torch.cat(losses).mean().exp().item()
    with torch.no_grad():
        assert task.evaluate(backbone, in_order) == {"ppl": pytest.approx(expected["test"], rel=1e-4)}
        task.scored_part = "validation"
        scores = {"ppl": expected["validation"], "ppl_test": expected["test"]}
        assert task.evaluate(backbone, in_order) == pytest.approx(scores, rel=1e-4)
    assert {metric.name: metric.primary for metric in task.metrics} == {"ppl": True, "ppl_test": False}


def test_a_generated_page_hides_things_of_its_list():
    generated = ready("mlm")
    pages = generated.splits["train"].__getitems__(list(range(200)))
    assert pages.shape == (200, 52)
    seen, places = generated.hide(pages, torch.Generator().manual_seed(1))
    assert {generated.corpus.text([t]).strip() for t in pages.flatten()[places].tolist()} == set(THINGS)
    assert len(places) / 200 == pytest.approx(0.8 * 16, abs=0.2)
    assert (seen[:, :19] == pages[:, :19]).all()
    baselines = generated.baselines()
    assert baselines["look_up_0"]["ppl"] == pytest.approx(16.0)
    assert baselines["look_up_52"]["ppl"] == pytest.approx(1.0)
    assert baselines["look_up_4"]["ppl"] == pytest.approx(8.0, abs=0.2)
