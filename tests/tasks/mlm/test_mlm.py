"""MLM: which tokens are hidden, and the perplexity of those."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cab import Backbone
from tasks.corpus.facts import THINGS
from tasks.corpus.tokens import NUM_SPECIAL, PAD
from tasks.mlm.task import MLM, generate_book
from tests.helpers.in_order import in_order
from tests.helpers.tasks.layouts import write_books
from tests.helpers.tasks.records import ready


class Lookup(Backbone):
    """Logits that depend on the token seen alone."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(size, size))

    def forward(self, tokens: Tensor, padding_mask: Tensor | None = None, *, selected: Tensor) -> Tensor:
        assert padding_mask is None or torch.equal(padding_mask, tokens == PAD)
        return self.table[tokens.flatten()[selected]]


def test_what_is_hidden(tmp_path: Path) -> None:
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
    share = {
        "masked": (seen[chosen] == task.mask).float().mean().item(),
        "kept": (seen[chosen] == tokens[chosen]).float().mean().item(),
    }
    assert share["masked"] == pytest.approx(0.8, abs=0.03)
    assert share["kept"] == pytest.approx(0.1, abs=0.03)
    assert seen[chosen & (seen != task.mask)].min() >= NUM_SPECIAL
    again, _ = task.hide(tokens, torch.Generator().manual_seed(1))
    assert torch.equal(seen, again)
    for seed in range(20):  # at least one of a short row
        assert task.hide(torch.tensor([[7, PAD, PAD]]), torch.Generator().manual_seed(seed))[1].tolist() == [0]


@pytest.mark.parametrize("split", ["test", "validation"])
def test_perplexity_is_the_likelihood_of_the_hidden_tokens(split: str, tmp_path: Path) -> None:
    task = ready("mlm", write_books(tmp_path), scored_part=split)
    backbone = Lookup(task.mask + 1).eval()
    expected = {}
    for name in ("validation", "test"):
        generator, nats, count = torch.Generator().manual_seed(0), 0.0, 0
        pages = task.splits[name]
        for indices in torch.arange(len(pages)).split(3):
            batch = pages.__getitems__(indices.tolist())
            seen, places = task.hide(batch, generator)
            logs = backbone.table.double()[seen.flatten()[places]].log_softmax(dim=-1)
            nats -= logs.gather(1, batch.flatten()[places].unsqueeze(1)).sum().item()
            count += len(places)
        expected[name] = math.exp(nats / count)
    with torch.no_grad():
        scores = task.evaluate(backbone, in_order)
        assert scores == task.evaluate(backbone, in_order)
    assert scores["ppl"] == pytest.approx(expected[split], rel=1e-4)
    assert {m.name: m.primary for m in task.metrics} == (
        {"ppl": True} if split == "test" else {"ppl": True, "ppl_test": False}
    )
    if split == "validation":
        assert scores["ppl_test"] == pytest.approx(expected["test"], rel=1e-4)


@pytest.fixture(scope="module")
def generated() -> MLM:
    options = {"dataset": "synthetic", "vocab_size": 800, "block_len": 52, "mask_share": 0.8}
    return ready("mlm", None, **options, loss_on="answers")


def test_a_generated_page_hides_things_of_its_list(generated: MLM) -> None:
    pages = generated.splits["train"].__getitems__(list(range(200)))
    assert pages.shape == (200, 52)
    seen, places = generated.hide(pages, torch.Generator().manual_seed(1))
    hidden = {generated.corpus.text([t]).strip() for t in pages.flatten()[places].tolist()}
    assert hidden == set(THINGS)
    assert len(places) / 200 == pytest.approx(0.8 * 16, abs=0.2)
    told, listed = (line.split()[1:] for line in generate_book(0).splitlines()[:2])
    near = [name for name in listed[::2] if name in told]
    assert len(near) == 4
    for name, thing in zip(listed[::2], listed[1::2], strict=True):
        assert name in told if name in near else name + thing in told
    assert (seen[:, :19] == pages[:, :19]).all()


@pytest.mark.parametrize("names", [16, 32])
def test_a_page_fits_its_block(names: int) -> None:
    size = 3 * names + 4
    task = ready("mlm", None, dataset="synthetic", vocab_size=1000, names=names, block_len=size, loss_on="answers")
    page = task.splits["train"].__getitems__([0])
    assert page.shape == (1, size)
    assert task.baselines()[f"look_up_{size}"]["ppl"] == pytest.approx(1.0)


def test_bounds_of_generated_pages(generated: MLM) -> None:
    baselines = generated.baselines()
    assert baselines["look_up_0"]["ppl"] == pytest.approx(16.0)
    assert baselines["look_up_52"]["ppl"] == pytest.approx(1.0)
    assert baselines["look_up_4"]["ppl"] == pytest.approx(8.0, abs=0.2)
