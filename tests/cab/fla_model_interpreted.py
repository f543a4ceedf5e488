"""A model of flash-linear-attention with one of our layers, under Triton's interpreter: run by test_fla_layer.py.

The interpreter has to be chosen before Triton is loaded, so this runs in a process of its own (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import pytest
import torch
from fla.models import GLAConfig, GLAForCausalLM
from triton.runtime.autotuner import Autotuner

from cab import FlaLayer
from tests.attentions.fla_interpreted import with_the_first_setting
from tests.cab.test_fla_layer import ATTENTIONS, PADDING, check_generation, layer, prompt


@pytest.fixture(autouse=True)
def _on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Autotuner, "run", with_the_first_setting)


def model(ours: FlaLayer) -> GLAForCausalLM:
    """Two blocks, one of which has our layer."""
    config = GLAConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_heads=2,
        hidden_ratio=2,
        vocab_size=50,
        pad_token_id=0,
        eos_token_id=None,
        fuse_norm=False,
    )
    torch.manual_seed(1)
    built = GLAForCausalLM(config).eval()
    built.model.layers[ours.layer_idx].attn = ours
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=0.3)
    return built


@pytest.mark.parametrize(("name", "options"), ATTENTIONS)
def test_greedy_generation_is_the_same_with_and_without_cache(name, options):
    built = model(layer(name, **options))
    ids, mask = prompt()
    given = {"max_new_tokens": 8, "do_sample": False}
    cached, whole = (built.generate(ids, attention_mask=mask, use_cache=cache, **given) for cache in (True, False))
    check_generation(cached, whole, built.generate(ids[:1, PADDING:], **given))


def test_beam_search_reorders_the_state():
    built = model(layer("gla"))
    ids, mask = prompt()
    given = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False, "num_beams": 2}
    cached, whole = (built.generate(ids, use_cache=cache, **given) for cache in (True, False))
    assert torch.equal(cached, whole)
