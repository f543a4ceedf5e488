"""LM and MLM over many words: the network gives the losses itself; over few, and of one that cannot, logits do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from backbones.layers import token_losses as few_logits
from cab import build_backbone
from tasks.corpus import losses
from tasks.mlm.task import MLM
from tests.helpers.command import ROOT
from tests.helpers.tasks.layouts import write_books
from tests.helpers.tasks.records import ready
from tests.tasks.lm.test_lm import Bigram


@pytest.mark.parametrize(("name", "backbone", "pattern"), [("lm", "gpt2", "CS"), ("mlm", "roberta", "NS")])
def test_losses_and_gradients_are_those_of_all_logits(
    name: str, backbone: str, pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = ready(name, write_books(tmp_path))
    monkeypatch.setattr(few_logits, "AT_ONCE", 300)
    chunks: list[Tensor] = []

    def counted(function: Callable[..., Tensor], *chunk: Tensor, **options: Any) -> Any:
        chunks.append(chunk[1])
        return checkpoint(function, *chunk, **options)

    monkeypatch.setattr(few_logits, "checkpoint", counted)
    sizes = {"embed_dim": 16, "num_heads": 2, "ffn_dim": 16, "num_layers": 1, "dropout": 0.0, "attention_dropout": 0.0}
    options = {**sizes, **task.backbone_options(backbone)}
    network = build_backbone(backbone, attention={"name": "vanilla"}, pattern=pattern, **options)
    pages, results = [0, 1], []
    batch = (
        task.training_set.__getitems__(pages)
        if isinstance(task, MLM)
        else torch.stack([task.splits["train"][i] for i in pages])
    )
    for large in (losses.LARGE, 0):
        monkeypatch.setattr(losses, "LARGE", large)
        torch.manual_seed(3)
        loss = task.loss(network, batch)
        results.append([loss, *torch.autograd.grad(loss, list(network.parameters()))])
    for some, every in zip(*results, strict=True):
        torch.testing.assert_close(some, every)
    assert len(chunks) > 1


def test_losses_have_second_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_logits, "AT_ONCE", 20)
    x, weight = (torch.randn(size, 3, dtype=torch.float64, requires_grad=True) for size in (5, 7))
    targets, results = torch.tensor([0, 6, 2, 2, 1]), []
    for losses_of in (few_logits.token_losses, lambda x, w, _, y: F.cross_entropy(F.linear(x, w), y, reduction="none")):
        [gradient] = torch.autograd.grad(losses_of(x, weight, None, targets).sum(), x, create_graph=True)
        results.append(torch.autograd.grad(gradient.square().sum(), (x, weight)))
    torch.testing.assert_close(*results)


def test_a_network_that_gives_logits_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = ready("lm", write_books(tmp_path))
    network, batch = Bigram(task.corpus.size), torch.stack([task.splits["train"][0]])
    expected = task.loss(network, batch)
    monkeypatch.setattr(losses, "LARGE", 0)
    assert torch.equal(task.loss(network, batch), expected)


@pytest.mark.parametrize("preset", ["mini", "smoke"])
@pytest.mark.parametrize("task", ["lm", "mlm"])
def test_small_presets_have_all_logits_at_once(preset: str, task: str) -> None:
    """So that their recorded scores stay what they are, to the bit."""
    config = yaml.safe_load((ROOT / "configs" / "recipe" / task / f"{preset}.yaml").read_text())
    rows = max(config["trainer"]["batch_size"], config["task"]["evaluation_batch_size"])
    lengths = [config["task"]["block_len"], *config["task"].get("context_lengths", [])]
    assert rows * max(lengths) * (config["task"]["vocab_size"] + 8) < losses.LARGE
