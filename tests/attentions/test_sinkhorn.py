"""Sorted blocks: Sinkhorn attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attentions.sinkhorn import SinkhornAttention
from cab import UserError, build_attention
from tests.attentions import agreement

CASES: list[tuple[str, dict[str, Any]]] = [
    ("NS", {"block_size": 6}),
    ("NS", {"block_size": 1, "iterations": 2}),
    ("CS", {"block_size": 5}),
    ("CS", {"block_size": 1, "temperature": 2.0}),
]


@pytest.mark.parametrize(("pattern", "options"), CASES)
class TestForms:
    @pytest.mark.parametrize("length", [1, 2, 37])
    def test_forms_agree(self, pattern: str, options: dict[str, Any], length: int) -> None:
        agreement.assert_forms_agree(agreement.make("sinkhorn", pattern, **options), length, length)

    def test_padding_is_nothing(self, pattern: str, options: dict[str, Any]) -> None:
        agreement.assert_padding_is_nothing(agreement.make("sinkhorn", pattern, **options), 29, 29)

    def test_dropout_in_both_passes(self, pattern: str, options: dict[str, Any]) -> None:
        agreement.assert_dropout(agreement.make("sinkhorn", pattern, dropout=0.4, **options), 40)


@pytest.mark.parametrize("size", [1, 4, 5, 60])
class TestCausal:
    def test_causal(self, size: int) -> None:
        agreement.assert_causal(agreement.make("sinkhorn", "CS", block_size=size), 30)

    def test_decodes(self, size: int) -> None:
        agreement.assert_decodes(agreement.make("sinkhorn", "CS", block_size=size), 41, 41, (5, 1, 17, 1))


def test_permutation_is_doubly_stochastic() -> None:
    module = agreement.make("sinkhorn", "NS", iterations=200)
    order = module.permutation(*torch.randn(2, 3, 7, 8, dtype=torch.float64))
    torch.testing.assert_close(order.sum(dim=-1), torch.ones(3, 7, dtype=torch.float64))
    torch.testing.assert_close(order.sum(dim=-2), torch.ones(3, 7, dtype=torch.float64))


class PublishedColumns(SinkhornAttention):
    """Causal Sinkhorn as published: rows and columns of the scores of earlier blocks, normalised in turn."""

    def past(self, queries: Tensor, keys: Tensor, block: Tensor) -> Tensor:
        earlier = torch.arange(keys.shape[-2]) < block.unsqueeze(-1)
        logits = self.scores(queries, keys).masked_fill(~earlier, -1e9)
        for _ in range(self.iterations):
            logits = logits - logits.logsumexp(dim=-1, keepdim=True)
            logits = logits - logits.logsumexp(dim=-2, keepdim=True)
        return logits.exp().masked_fill(~earlier, 0.0)


def test_published_columns_see_the_future() -> None:
    """What a block gets depends on what later blocks get."""
    options = {"pattern": "CS", "embed_dim": agreement.WIDTH, "num_heads": agreement.HEADS, "block_size": 5}
    x = torch.randn(1, 60, agreement.WIDTH, dtype=torch.float64)
    other = torch.cat([x[:, :40], torch.randn_like(x[:, 40:])], dim=1)
    leaks = []
    for cls in (PublishedColumns, SinkhornAttention):
        module = cls(**options).double()
        leaks.append(float((module(x) - module(other))[:, :40].detach().abs().max()))
    assert leaks[0] > 1e-4
    assert leaks[1] < 1e-12


def test_outputs_are_those_of_public_code() -> None:
    """sinkhorn-transformer 0.11.4, SinkhornAttention with Gumbel noise of 0, by its score, the logarithm of ReLU.

    It makes sorted values of sorted keys, so values are keys here; its causal form is another.
    """
    with np.load(Path(__file__).parent / "public_code" / "sinkhorn.npz") as file:
        arrays = {key: torch.from_numpy(file[key]) for key in file.files}
    module = build_attention("sinkhorn", pattern="NS", embed_dim=16, num_heads=2, block_size=6).double()
    module.load_state_dict({key.removeprefix("state."): x for key, x in arrays.items() if key.startswith("state.")})
    module.scores = lambda a, b: ((a @ b.mT * module.scale).relu() + 1e-6).log() / module.temperature
    torch.testing.assert_close(module(arrays["input.0"].double()), arrays["output"])


@pytest.mark.parametrize("options", [{"block_size": 0}, {"iterations": 0}, {"temperature": 0.0}])
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="must be"):
        agreement.make("sinkhorn", "NS", **options)
