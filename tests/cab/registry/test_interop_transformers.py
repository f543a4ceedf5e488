"""Registered attentions inside models of transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from cab import UserError, use_in_transformers
from tests.cab.registry.test_interop_fla import PADDING, check_generation, prompt

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM  # takes seconds to import


def model(attention: str) -> LlamaForCausalLM:
    """A tiny Llama with grouped keys; its weights do not depend on the attention."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=50,
        hidden_size=64,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    built = LlamaForCausalLM._from_config(config, attn_implementation=attention).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=0.3, generator=generator)
    return built


@pytest.mark.parametrize(
    ("name", "options"), [("linear", {}), ("local", {"window_size": 3}), ("flash", {}), ("abc", {})]
)
def test_greedy_generation_is_the_same_with_and_without_cache(name, options):
    built = model(use_in_transformers(name, **options))
    ids, mask = prompt()
    cached, whole = (
        built.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False, use_cache=cache)
        for cache in (True, False)
    )
    alone = built.generate(ids[:1, PADDING:], max_new_tokens=12, do_sample=False)
    check_generation(cached, whole, alone)


def test_vanilla_is_the_attention_of_transformers():
    ids, mask = prompt()
    with torch.no_grad():
        ours, theirs = (
            model(attention)(ids, attention_mask=mask).logits[mask.bool()]
            for attention in (use_in_transformers("vanilla"), "sdpa")
        )
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_gradients_reach_the_model():
    built = model(use_in_transformers("linear")).train()
    built(prompt()[0]).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in built.parameters())


@pytest.mark.parametrize(
    ("name", "reason"),
    [("gla", "computes more than queries, keys and values"), ("flowformer", "depends on earlier queries")],
)
def test_attentions_that_need_more_than_heads_are_refused(name, reason):
    with pytest.raises(UserError, match=reason):
        use_in_transformers(name)
