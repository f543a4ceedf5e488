"""Properties of every backbone, from its record: stored numbers, rows that do not depend on others, training."""

import csv
import functools
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cab import Backbone, UserError, build_backbone
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS
from cab.registry.tables import tuned_options
from tests.helpers.backbones.records import RECORDS, VOCABULARY, objective, outputs, same_gradients, series, small
from tests.helpers.command import ROOT

NUMBERS, SIZES = Path(__file__).with_name("numbers.csv"), ROOT / "configs" / "size"
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in RECORDS),
    ("gpt2", {"residual": "gtrxl", "positions": "sinusoidal"}),
    ("gpt2", {"norm": "simplerms", "feed_forward": "glu", "activation": "swish", "positions": "none"}),
    ("gpt2", {"feed_forward": "none", "scale_embedding": False}),
    ("gpt2_universal", {"positions": "learned", "max_length": 20, "num_layers": 4}),
    ("gpt2_act", {"num_layers": 5}),
    ("llama", {"depth_block": 3, "tied": True}),
    ("llama", {"init_std": 0.02}),
    ("roberta", {"init_std": 0.125, "norm": "simplerms", "feed_forward": "glu"}),
    ("roberta_funnel", {"num_layers": 5}),
    ("encoder", {"pooling": "padded_mean"}),
    ("transformer", {"embed_layer_norm": True, "share_embeddings": True}),
    ("informer", {"normalization": "window", "encoder_layers": 3, "decoder_layers": 2}),
    ("informer", {"normalization": "seasonal", "season": 5}),
    ("fastspeech2", {"postnet": True, "pitch_range": [-1.0, 1.5]}),
    ("pointr", {"init_std": 0.02, "num_queries": 35}),
]


def numbers(name: str, options: dict[str, Any]) -> list[str]:
    """Names and shapes of the weights; the first weights; loss, gradients and statistics of a step without dropout."""
    torch.manual_seed(0)
    dtype = torch.float32 if name == "sr3" else torch.float64  # it encodes the noise level in float32
    network = RECORDS[name].build(name, **options).to(dtype).train()
    draw = functools.partial(torch.randn, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    state = network.state_dict()
    names = hashlib.sha256("".join(f"{key} {list(x.shape)}\n" for key, x in state.items()).encode()).hexdigest()[:12]
    first = sum((x * draw(x.shape)).sum() for x in state.values())
    for key, parameter in network.named_parameters():
        parameter.data = (0.2 * draw(parameter.shape) + float(key.endswith("norm.weight"))).to(dtype)
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    torch.manual_seed(1)
    inputs = {key: x.to(dtype) if x.is_floating_point() else x for key, x in RECORDS[name].inputs().items()}
    loss = objective(network, inputs)
    loss.backward()
    slopes = sum((x.grad * draw(x.shape)).sum() for x in network.parameters() if x.grad is not None)
    statistics = sum((x * draw(x.shape)).sum() for x in network.buffers())
    return [names, *(f"{float(x):.9g}" for x in (first, loss.detach(), slopes, statistics))]


def test_every_backbone_has_its_sizes_and_its_stored_numbers():
    """To change them on purpose, delete the file and run this test twice; only rows that should may differ."""
    names = {entry.name for entry in BACKBONES if entry.location.module.startswith("backbones.")}
    assert names == RECORDS.keys(), "add a record to tests/helpers/backbones/records.py"
    for preset in ("mini", "smoke"):
        assert {path.parent.name for path in SIZES.glob(f"*/{preset}.yaml")} == RECORDS.keys()
    found = {(name, json.dumps(options)): numbers(name, options) for name, options in VARIANTS}
    if not NUMBERS.exists():
        with NUMBERS.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([*key, *row] for key, row in found.items())
        pytest.fail(f"{NUMBERS} was written; commit it")
    stored = {(name, options): row for name, options, *row in csv.reader(NUMBERS.open(newline=""))}
    assert stored.keys() == found.keys()
    for key, (weights, *row) in found.items():
        assert weights == stored[key][0], key
        assert [*map(float, row)] == pytest.approx([*map(float, stored[key][1:])], rel=1e-4, abs=1e-6), key


ALONE: list[tuple[str, str, Any, dict[str, Any]]] = [
    *((name, record.pattern, "vanilla" if record.hides else "abc", {}) for name, record in RECORDS.items()),
    ("gpt2_act", "CS", "linear", {"num_layers": 3}),
    ("gpt2", "CS", "longshort", {"num_layers": 3, "residual": "gtrxl"}),
    ("gpt2", "CS", "s4d", {}),
    ("roberta", "NS", "performer", {}),
    ("transformer", "CS", "local", {}),
    ("transformer", "CC", "abc", {}),
    ("roberta_funnel", "NS", "local", {"num_layers": 5, "other_attention": {"NC": "abc"}}),
    ("fastspeech2", "NS", "lara", {"postnet": True}),
    ("transformer_tts", "NS", "lara", {}),
    ("transformer_tts", "CC", "performer", {}),
]


def visible(output: Any, masks: list[Tensor]) -> list[Tensor]:
    """The vectors of each output that no mask of its shape hides, be it an input or an output."""
    masks = [*(x for x in outputs(output) if x.dtype == torch.bool), *masks]
    vectors = [x for x in outputs(output) if x.is_floating_point()]
    hidden = [next((mask for mask in masks if mask.shape == x.shape[:2]), None) for x in vectors]
    return [x if mask is None else x[~mask] for x, mask in zip(vectors, hidden, strict=True)]


@pytest.mark.parametrize(("name", "pattern", "attention", "options"), ALONE)
def test_a_row_gives_what_it_gives_alone(name, pattern, attention, options):
    """Outputs and the gradients of all parameters, whatever is at the padding, and on whichever side it is."""
    dtype, error = (torch.float32, 1e-4) if name == "sr3" else (torch.float64, 1e-5)
    record, backbone = RECORDS[name], small(name, pattern, attention, **options).to(dtype)
    inputs = {key: x.to(dtype) if x.is_floating_point() else x for key, x in record.inputs().items()}
    from_the_left = name in ("encoder", "roberta_classifier")  # numbers positions, or reads a token, from there
    for flips in (False, True) if record.hides and not from_the_left else (False,):
        masks = {key: inputs[key].flip(1) if flips else inputs[key] for key in record.hides}
        mask_of = {each: masks[key] for key, hidden in record.hides.items() for each in hidden}
        noisy = dict(inputs)  # with numbers at the padding that would be noticed
        for key, mask in mask_of.items():
            if inputs[key].is_floating_point():
                noisy[key] = inputs[key].masked_fill(mask.view(*mask.shape, *[1] * (inputs[key].dim() - 2)), 1e3)
        together = visible(backbone(**{**noisy, **masks}), [*reversed(masks.values())])
        rows = []
        for row in range(3):
            own = {key: x[row : row + 1] for key, x in inputs.items() if key not in masks}
            own |= {key: own[key][:, ~mask[row]] for key, mask in mask_of.items()}
            found = visible(backbone(**own, **dict.fromkeys(masks)), [])
            rows.append([x[0] if x.dim() > y.dim() else x for x, y in zip(found, together, strict=True)])
        alone = [torch.cat(parts) for parts in zip(*rows, strict=True)]
        torch.testing.assert_close(together, alone, rtol=error, atol=error / 10)
        sums = [torch.stack([x.sin().sum() for x in found]).sum() for found in (together, alone)]
        same_gradients(backbone, *sums, rtol=error, atol=error / 10)


@pytest.mark.parametrize("cell", ["gpt2 CS", "llama NS", "roberta NS", "roberta_funnel NS"])
def test_logits_at_selected_places_are_those_of_all(cell):
    backbone, inputs = small(*cell.split()), RECORDS[cell.split()[0]].inputs()
    selected = (~inputs["padding_mask"]).flatten().nonzero().squeeze(1)[::3]
    everything, alone = backbone(**inputs).flatten(0, 1)[selected], backbone(**inputs, selected=selected)
    torch.testing.assert_close(alone, everything)
    same_gradients(backbone, everything, alone)
    targets = torch.randint(VOCABULARY, selected.shape)
    losses = nn.functional.cross_entropy(everything, targets, reduction="none")
    torch.testing.assert_close(backbone(**inputs, selected=selected, targets=targets), losses)


MISTAKES = [
    ("gpt2", "tokens", lambda ids: ids.repeat(1, 3), "longer than the 20 learned positions"),
    ("gpt2", "tokens", lambda ids: ids.index_fill(1, torch.tensor([2]), VOCABULARY), "the vocabulary has 0 to 22"),
    ("gpt2", "tokens", lambda ids: ids[:0], "at least 1"),
    ("roberta", "padding_mask", lambda mask: mask.index_fill(0, torch.tensor([0, 2]), True), r"rows \[0, 2\]"),
    ("roberta", "padding_mask", lambda mask: mask[:, 1:], "must be bool"),
    ("transformer", "target", lambda ids: ids.repeat(1, 3), "learned positions"),
    ("transformer", "source_padding_mask", torch.ones_like, "every token"),
    ("fastspeech2", "durations", lambda x: torch.full_like(x, 134), "1206 frames, more than the 1200"),
    ("fastspeech2", "pitch", lambda x: x[:, :1], "pitch must be"),
    ("transformer_tts", "frames", lambda x: x[..., 1:], r"\[3, steps, 6\]"),
    ("transformer_tts", "frame_padding", lambda mask: mask[:, 1:], "frame_padding"),
    ("informer", "past_time", lambda x: x[:, :1], r"\[B, N, 4\]"),
    ("informer", "decoder_time", lambda x: x[:, :9], r"\[B, K \+ T, 4\]"),
    ("pointr", "partial", lambda x: x[:, :19], "fewer points than first_samples 20"),
    ("sr3", "noise_level", lambda x: x[:1], r"noise_level must be \[3\]"),
]


@pytest.mark.parametrize(("name", "place", "change", "message"), MISTAKES)
def test_inputs_that_would_give_wrong_numbers_are_refused(name, place, change, message):
    inputs = RECORDS[name].inputs()
    with pytest.raises(UserError, match=message):
        RECORDS[name].build(name)(**{**inputs, place: change(inputs[place])})


REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("fastspeech2", "NS", {"pitch_range": (1.0, 1.0)}, "pitch_range"),
    ("gpt2_reversible", "CS", {"residual": "gtrxl"}, "cannot invert a gate"),
    ("gpt2_reversible", "CS", {"feed_forward": "none"}, "alternates"),
    ("llama", "CC", {}, "no layer with pattern CC"),
    ("pointr", "NC", {"num_proxies": 21, "first_samples": 20}, "num_proxies 21 at most first_samples 20"),
]


@pytest.mark.parametrize(("name", "pattern", "options", "message"), REFUSED)
def test_options_are_refused(name, pattern, options, message):
    with torch.device("meta"), pytest.raises(UserError, match=message):
        build_backbone(name, pattern=pattern, **options)


@pytest.mark.parametrize("normalization", ["window", "seasonal"])
def test_a_constant_window_is_forecast_as_it_is(normalization):
    backbone, inputs = RECORDS["informer"].build("informer", normalization=normalization, season=50), series()
    forecast = backbone(**{**inputs, **{key: torch.full_like(inputs[key], 6.0) for key in ("past", "known")}})
    torch.testing.assert_close(forecast, torch.full_like(forecast, 6.0), rtol=0, atol=1e-3)
    if normalization == "seasonal":
        with pytest.raises(UserError, match="steps of past"):
            RECORDS["informer"].build("informer", normalization=normalization, season=60)(**inputs)


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
    inputs = RECORDS[name].batch(pattern)
    backbone.zero_grad()
    torch.manual_seed(3)
    objective(backbone, inputs).backward()
    return {key: p.grad.clone() for key, p in backbone.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("name", "pattern"), TASK_OF)
def test_every_attention_that_has_the_pattern_trains_there(name, pattern):
    """Finite gradients reach the slots, with preset mini's options; backbones take the attentions in turn."""
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
def test_a_stack_has_its_attentions_in_turn_in_every_backbone_with_layers(name, pattern):
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
def test_every_weight_is_trained_and_recomputed_activations_give_the_same_gradients(name, pattern, network):
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
def test_bfloat16_by_autocast(name, pattern, network):
    backbone, inputs = make(name, "vanilla", pattern, **network).eval(), RECORDS[name].batch(pattern)
    exact = objective(backbone, inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = objective(backbone, inputs)
    low.backward()
    assert low.item() == pytest.approx(exact.item(), rel=0.03)
    assert all(p.grad.isfinite().all() for p in backbone.parameters() if p.grad is not None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["gpt2", "gpt2_reversible", "gpt2_universal", "roberta", "roberta_funnel", "transformer"]
)
def test_compiles_to_one_graph(name):
    """Plain layers also recompute their activations."""
    backbone = make(name, "vanilla", RECORDS[name].pattern, checkpoint_activations="_" not in name)
    inputs = RECORDS[name].batch(RECORDS[name].pattern)
    torch.compiler.reset()
    results = []
    for call in (backbone, torch.compile(backbone, backend="aot_eager", fullgraph=True)):
        loss = call(**inputs).square().mean()
        results.append([loss, *torch.autograd.grad(loss, list(backbone.parameters()))])
    torch.testing.assert_close(*results)
