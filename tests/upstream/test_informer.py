"""Informer's own self attention, ``AttentionLayer(ProbAttention)`` of models/attn.py, against preset `paper`'s slots.

A file holds our state_dict (``state.*``), an input, the keys that were sampled and the output, dropout 0, in float64;
NS without a mask, CS with the mask and ``mix``, as the decoder has it.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from cab import Attention, Pattern
from cab.attention import PaddingMasks
from cab.registry.build import make_attention
from cab.spec import Spec
from tests.upstream import paper

FILES = Path(__file__).parent / "informer"
SAMPLED = {168: 30, 336: 30, 504: 35, 888: 35, 1056: 35}
"""Keys that each query of so many draws, factor 5: ``ProbAttention.forward``, ``U_part``."""


def filled(pattern: str, **sizes: int) -> Attention:
    """Return the attention that fills the slots of a pattern in preset `paper`."""
    options = dict(paper("lstf", "etth1", "informer")["other_attention"][pattern])
    spec = Spec(options.pop("name"), options | sizes)
    return make_attention(spec, Pattern.parse(pattern), embed_dim=8, num_heads=2, allow_unsound=True)


@pytest.mark.parametrize("pattern", ["NS", "CS"])
def test_self_slots_are_informers(pattern):
    with np.load(FILES / f"probsparse_{pattern.lower()}.npz") as file:
        arrays = {key: torch.from_numpy(file[key]) for key in file.files}
    module = filled(pattern, factor=2).double().eval()
    module.load_state_dict({k.removeprefix("state."): x for k, x in arrays.items() if k.startswith("state.")})
    keys = arrays["sample"].expand(len(arrays["output"]), -1, -1)
    module.sample_noise = lambda *_: {"sample": keys}  # type: ignore[method-assign]
    assert (module(arrays["input.0"].double()) - arrays["output"]).norm() < 1e-9 * arrays["output"].norm()


@pytest.mark.parametrize("pattern", ["NS", "CS"])
@pytest.mark.parametrize("length", SAMPLED)
def test_every_query_draws_keys_of_its_own(pattern, length):
    """``torch.randint(L_K, (L_Q, U_part))``."""
    tokens = torch.zeros(1, length, 8)
    sample = filled(pattern).train().sample_noise(tokens, tokens, PaddingMasks(None, None))["sample"]
    assert sample.shape == (1, length, SAMPLED[length])
    assert (sample[0, :-1] != sample[0, 1:]).any(dim=1).all()
