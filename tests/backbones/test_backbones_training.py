"""Every backbone, from its record: learning, recomputed activations, bfloat16, compilation, every attention."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from cab import UserError, build_backbone
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS
from cab.registry.tables import tuned_options
from tests.helpers.backbones.learning import gradients, losses, same_gradients
from tests.helpers.backbones.records import RECORDS, objective

SIZES = Path(__file__).resolve().parents[2] / "configs" / "size"
TASK_OF = {
    (backbone, str(pattern)): task.name
    for task in TASKS
    if task.location.module.startswith("tasks.")
    for backbone, patterns in task.backbones.items()
    for pattern in patterns
}
SLOTS = [*TASK_OF]
NETWORKS_OF_EACH_KIND: list[tuple[str, str, dict[str, Any]]] = [
    *((name, pattern, {}) for name, pattern in dict(SLOTS).items()),
    ("gpt2", "CS", {"residual": "gtrxl"}),
    ("llama", "CS", {"depth_block": 1}),
]
STACK = "abc,linear+vanilla"
UNUSED = {"pointr": r"neighborhood\."}
"""Parameters without an effect: all blocks of the public network own a neighborhood, and the first one uses it."""


def make(name: str, attention: str, pattern: str, spec: Any = (), *, drops: bool = False, **options: Any) -> Any:
    """The network of the record in training; if it ``drops``, with every dropout that it has."""
    if drops:
        options = dict.fromkeys({"dropout", "attention_dropout"} & {*BACKBONES.get(name).options}, 0.2) | options
    torch.manual_seed(0)
    return RECORDS[name].build(name, pattern, attention={"name": attention, **dict(spec)}, **options).train()


def loss_of(name: str, pattern: str) -> Any:
    inputs = RECORDS[name].batch(pattern)
    return lambda backbone: objective(backbone, inputs)


@pytest.mark.parametrize("share", ["one in turn", pytest.param("all others", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "pattern"), SLOTS)
def test_every_attention_that_has_the_pattern_trains_there(name: str, pattern: str, share: str) -> None:
    """One step of a smoke network, with preset mini's options: a finite loss, and gradients that reach the slots.

    The backbones of a pattern take its attentions in turn.
    """
    backbones = [backbone for backbone, slot in SLOTS if slot == pattern]
    for number, entry in enumerate(ATTENTIONS):
        takes = (backbones[number % len(backbones)] == name) == (share == "one in turn")
        if takes and pattern in map(str, entry.patterns) and entry.name not in ("none", "flash"):  # flash: no dropout
            options = tuned_options(TASK_OF[name, pattern], name, pattern, entry.name, preset="mini")
            backbone = make(name, entry.name, pattern, options)
            loss = loss_of(name, pattern)(backbone)
            loss.backward()
            assert loss.isfinite(), entry.name
            for path, slot in backbone.attention_layers():
                if str(slot) == pattern:
                    parameters = list(backbone.get_submodule(path).parameters())  # fnet has none
                    gradients = [p.grad for p in parameters if p.grad is not None]
                    assert gradients or not parameters, (entry.name, path)
                    assert all(gradient.isfinite().all() for gradient in gradients), (entry.name, path)


@pytest.mark.parametrize(("name", "pattern"), SLOTS)
def test_a_stack_has_its_attentions_in_turn_in_every_backbone_with_layers(name: str, pattern: str) -> None:
    """The period starts with the first layer of each kind, and one step reaches every attention."""
    depths: dict[str, Any] = {option: 4 for option in BACKBONES.get(name).options if option.endswith("_layers")}
    depths |= {"attention_resolutions": [8, 4]} if name == "sr3" else {}
    if name in ("gpt2_universal", "gpt2_act"):
        with pytest.raises(UserError, match="the network only 1 with pattern CS: use a shorter stack"):
            make(name, STACK, pattern, **depths)
        return
    backbone = make(name, STACK, pattern, **depths)
    tested = [backbone.get_submodule(path) for path, slot in backbone.attention_layers() if str(slot) == pattern]
    kinds = [type(slot).__name__ for slot in tested]
    assert kinds == (["ABCAttention", STACK] * len(kinds))[: len(kinds)]
    loss_of(name, pattern)(backbone).backward()
    assert all(parameter.grad is not None for slot in tested for parameter in slot.parameters())


LEARNING = [(name, pattern, attention, {}) for name, pattern in SLOTS for attention in ("vanilla", "abc")]
LEARNING += [(name, pattern, "vanilla", network) for name, pattern, network in NETWORKS_OF_EACH_KIND if network]


@pytest.mark.parametrize(("name", "pattern", "attention", "network"), LEARNING)
def test_thirty_steps_lower_the_loss_and_move_every_weight(
    name: str, pattern: str, attention: str, network: dict[str, Any]
) -> None:
    backbone = make(name, attention, pattern, **network)
    start = {key: parameter.clone() for key, parameter in backbone.named_parameters()}
    found = losses(backbone, loss_of(name, pattern), enough=0.85)
    assert found[-1] < 0.85 * found[0]
    still = [key for key, parameter in backbone.named_parameters() if torch.equal(parameter, start[key])]
    assert [key for key in still if not re.search(UNUSED.get(name, "^$"), key)] == []


@pytest.mark.parametrize(
    ("name", "pattern", "network"), [case for case in NETWORKS_OF_EACH_KIND if case[0] != "gpt2_reversible"]
)
def test_recomputed_activations_give_the_same_gradients(name: str, pattern: str, network: dict[str, Any]) -> None:
    """Dropout included; each attention layer runs once more in the backward pass, and once without gradients."""
    backbone, loss = make(name, "abc", pattern, drops=True, **network), loss_of(name, pattern)
    plain, calls = gradients(backbone, loss), []
    for path, _ in backbone.attention_layers():
        backbone.get_submodule(path).register_forward_pre_hook(lambda module, *_: calls.append(module))
    with torch.no_grad():
        loss(backbone)
    once = len(calls)
    assert same_gradients(backbone, loss, plain) < 1e-5
    assert len(calls) == 3 * once > 0


@pytest.mark.parametrize(("name", "pattern", "network"), NETWORKS_OF_EACH_KIND)
def test_bfloat16_by_autocast(name: str, pattern: str, network: dict[str, Any]) -> None:
    backbone, loss = make(name, "vanilla", pattern, **network).eval(), loss_of(name, pattern)
    exact = loss(backbone)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = loss(backbone)
    low.backward()
    assert low.item() == pytest.approx(exact.item(), rel=0.03)
    assert all(p.grad.isfinite().all() for p in backbone.parameters() if p.grad is not None)


NOT_COMPILED = ("gpt2_act", "roberta_classifier", "transformer_tts", "roberta_funnel_classifier")
"""The loss of the first is collected outside; the others have the layers of another."""
COMPILED = [  # plain layers also recompute their activations
    (name, pattern, network, not network and "_" not in name)
    for name, pattern, network in NETWORKS_OF_EACH_KIND
    if name.startswith(("gpt2", "roberta", "transformer")) and name not in NOT_COMPILED
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "pattern", "network", "saves"), COMPILED)
def test_compiles_to_one_graph(name: str, pattern: str, network: dict[str, Any], saves: bool) -> None:
    backbone = make(name, "vanilla", pattern, checkpoint_activations=saves, **network)
    loss = loss_of(name, pattern)
    torch.compiler.reset()
    results = []
    for call in (backbone, torch.compile(backbone, backend="aot_eager", fullgraph=True)):
        value = loss(call)
        results.append([value, *torch.autograd.grad(value, list(backbone.parameters()))])
    for plain, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, plain)


def test_every_backbone_has_its_sizes() -> None:
    for preset in ("mini", "smoke"):
        assert {path.parent.name for path in SIZES.glob(f"*/{preset}.yaml")} == RECORDS.keys()


REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("fastspeech2", "NS", {"pitch_range": (1.0, 1.0)}, "pitch_range"),
    ("fastspeech2", "NS", {"energy_range": (2.0, -1.0)}, "energy_range"),
    ("fastspeech2", "NS", {"kernel_size": 4}, "kernel_size"),
    (
        "gpt2",
        "CS",
        {"positions": "sinusoid"},
        r"positions: Input should be 'sinusoidal', 'learned' or 'none'",
    ),
    ("gpt2_reversible", "CS", {"residual": "gtrxl"}, "cannot invert a gate: .* residual=plain"),
    ("gpt2_reversible", "CS", {"checkpoint_activations": True}, "recomputes activations .*activations=false"),
    ("gpt2_reversible", "CS", {"feed_forward": "none"}, "alternates .* set feed_forward=plain or glu"),
    ("pointr", "NC", {"points_per_query": 5}, "5 must be a square number"),
    ("pointr", "NC", {"num_proxies": 21, "first_samples": 20}, "num_proxies 21 at most first_samples 20"),
    ("roberta", "NS", {"max_length": 0}, "max_length of at least 1"),
    ("sr3", "NS", {"image_size": 9}, "image_size 9 must be a multiple of"),
    ("sr3", "NS", {"norm_groups": 3}, "of norm_groups 3"),
]


@pytest.mark.parametrize(("name", "pattern", "options", "message"), REFUSED)
def test_options_are_refused(name: str, pattern: str, options: dict[str, Any], message: str) -> None:
    with torch.device("meta"), pytest.raises(UserError, match=message):
        build_backbone(name, pattern=pattern, **options)
