"""Training of every backbone, from its record: every attention, recomputed activations, bfloat16, compilation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cab import Backbone, UserError
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS
from cab.registry.tables import tuned_options
from tests.helpers.backbones.records import RECORDS, objective

SIZES = Path(__file__).resolve().parents[2] / "configs" / "size"
TASK_OF = {
    (backbone, str(pattern)): task.name
    for task in TASKS
    if task.location.module.startswith("tasks.")
    for backbone, patterns in task.backbones.items()
    for pattern in patterns
}
NETWORKS: list[tuple[str, str, dict[str, Any]]] = [
    *((name, pattern, {}) for name, pattern in dict([*TASK_OF]).items()),
    ("gpt2", "CS", {"residual": "gtrxl"}),
    ("llama", "CS", {"depth_block": 1}),
]
STACK = "abc,linear+vanilla"
UNUSED = {"pointr": r"(encoder|decoder)\.1\.\w*neighborhood\.", "llama": "depth_norm"}
"""Without a gradient: the public PoinTr uses the neighborhood of its first block; queries over depth begin at zero."""


def make(name: str, attention: str, pattern: str, spec: Any = (), **options: Any) -> Any:
    torch.manual_seed(0)
    return RECORDS[name].build(name, pattern, attention={"name": attention, **dict(spec)}, **options).train()


def gradients(backbone: Backbone, name: str, pattern: str) -> dict[str, Tensor]:
    """Of one training step, by name."""
    inputs = RECORDS[name].batch(pattern)
    backbone.zero_grad()
    torch.manual_seed(3)
    objective(backbone, inputs).backward()
    return {key: p.grad.clone() for key, p in backbone.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("name", "pattern"), TASK_OF)
def test_every_attention_that_has_the_pattern_trains_there(name: str, pattern: str) -> None:
    """One step of a smoke network, with preset mini's options: finite gradients that reach the slots.

    The backbones of a pattern take its attentions in turn.
    """
    backbones = [backbone for backbone, slot in TASK_OF if slot == pattern]
    for number, entry in enumerate(ATTENTIONS):
        takes = backbones[number % len(backbones)] == name and pattern in map(str, entry.patterns)
        if takes and entry.name not in ("none", "flash"):  # flash: no dropout
            options = tuned_options(TASK_OF[name, pattern], name, pattern, entry.name, preset="mini")
            backbone = make(name, entry.name, pattern, options)
            found = gradients(backbone, name, pattern)
            assert all(gradient.isfinite().all() for gradient in found.values()), entry.name
            for path, slot in backbone.attention_layers():
                if str(slot) == pattern and [*backbone.get_submodule(path).parameters()]:  # fnet has none
                    assert any(key.startswith(f"{path}.") for key in found), (entry.name, path)


@pytest.mark.parametrize(("name", "pattern"), TASK_OF)
def test_a_stack_has_its_attentions_in_turn_in_every_backbone_with_layers(name: str, pattern: str) -> None:
    """The period starts with the first layer of each kind."""
    depths: dict[str, Any] = {option: 4 for option in BACKBONES.get(name).options if option.endswith("_layers")}
    depths |= {"attention_resolutions": [8, 4]} if name == "sr3" else {}
    if name in ("gpt2_universal", "gpt2_act"):
        with pytest.raises(UserError, match="the network only 1 with pattern CS: use a shorter stack"):
            make(name, STACK, pattern, **depths)
        return
    backbone = make(name, STACK, pattern, **depths)
    tested = [backbone.get_submodule(path) for path, slot in backbone.attention_layers() if str(slot) == pattern]
    assert [type(slot).__name__ for slot in tested] == (["ABCAttention", STACK] * len(tested))[: len(tested)]


@pytest.mark.parametrize(("name", "pattern", "network"), NETWORKS)
def test_every_weight_is_trained_and_recomputed_activations_give_the_same_gradients(
    name: str, pattern: str, network: dict[str, Any]
) -> None:
    """Dropout included; each attention layer runs once more in the backward pass."""
    drops = dict.fromkeys({"dropout", "attention_dropout"} & {*BACKBONES.get(name).options}, 0.2)
    backbone = make(name, "abc", pattern, **drops, **network)
    calls: list[int] = []
    for path, _ in backbone.attention_layers():
        backbone.get_submodule(path).register_forward_pre_hook(lambda *_: calls.append(1))
    plain, once = gradients(backbone, name, pattern), len(calls)
    still = [key for key, _ in backbone.named_parameters() if key not in plain or not plain[key].any()]
    assert [key for key in still if not re.search(UNUSED.get(name, "^$"), key)] == []
    if name == "gpt2_reversible":  # which always recomputes
        return
    backbone.checkpoint_activations = True
    again = gradients(backbone, name, pattern)
    assert plain.keys() == again.keys()
    assert max((plain[key] - again[key]).abs().max() for key in plain) < 1e-5
    assert len(calls) == 3 * once > 0


@pytest.mark.parametrize(("name", "pattern", "network"), NETWORKS)
def test_bfloat16_by_autocast(name: str, pattern: str, network: dict[str, Any]) -> None:
    backbone, inputs = make(name, "vanilla", pattern, **network).eval(), RECORDS[name].batch(pattern)
    exact = objective(backbone, inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = objective(backbone, inputs)
    low.backward()
    assert low.item() == pytest.approx(exact.item(), rel=0.03)
    assert all(p.grad.isfinite().all() for p in backbone.parameters() if p.grad is not None)


COMPILED = ("gpt2", "gpt2_reversible", "gpt2_universal", "roberta", "roberta_funnel", "transformer")


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_compiles_to_one_graph(name: str) -> None:
    """Plain layers also recompute their activations."""
    backbone = make(name, "vanilla", RECORDS[name].pattern, checkpoint_activations="_" not in name)
    inputs = RECORDS[name].batch(RECORDS[name].pattern)
    torch.compiler.reset()
    results = []
    for call in (backbone, torch.compile(backbone, backend="aot_eager", fullgraph=True)):
        loss = call(**inputs).square().mean()
        results.append([loss, *torch.autograd.grad(loss, list(backbone.parameters()))])
    for plain, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, plain)


def test_every_backbone_has_its_sizes() -> None:
    for preset in ("mini", "smoke"):
        assert {path.parent.name for path in SIZES.glob(f"*/{preset}.yaml")} == RECORDS.keys()
