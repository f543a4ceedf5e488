"""Stacks: their names, options and code, which are those of their parts; and networks that are made of them."""

from functools import partial

import pytest
from omegaconf import OmegaConf

from cab import FlaLayer, LayerPosition, Pattern, UserError, build_attention, build_backbone, use_in_transformers
from cab.attention import SINGLE_LAYER
from cab.config.compose import compose
from cab.records.names import installed_code
from cab.registry.build import state_bytes
from cab.registry.program import code_of, modules_of
from cab.registry.registries import ATTENTIONS
from cab.registry.specs import parse_spec
from cab.results.costs import State, measure_state
from cab.runner.cell import Cell
from cab.runner.launch import expand
from engines.fairseq.command import attention_options

SIZES = {"vocab_size": 9, "embed_dim": 8, "num_heads": 2, "ffn_dim": 8}
CELL = ("task=lm", "dataset=synthetic", "backbone=gpt2", "pattern=CS", "preset=smoke")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("gla,gla,gla,vanilla", "gla*3,vanilla"),
        (" gla*2, gla*1 , vanilla ", "gla*3,vanilla"),
        ("[linear,vanilla*2,linear,vanilla*2]", "linear,vanilla*2"),
        ("local+linear*2", "local+linear"),
    ],
)
def test_a_stack_has_one_name(written, name):
    assert (ATTENTIONS.get(written).name, ATTENTIONS.get(name).label) == (name, name)
    assert written in ATTENTIONS


def test_versions_and_earlier_names_of_parts_identify_a_run(monkeypatch):
    local = ATTENTIONS.get("local").cls
    monkeypatch.setattr(local, "version", 3, raising=False)
    monkeypatch.setattr(local, "renamed", {"window_size": "window"}, raising=False)
    config = compose([*CELL, "attention=[local*2,linear]", "attention.local.window_size=4"])
    changed = Cell.from_config(config).changed
    assert (changed["attention version"], changed["attention.local.window"]) == (3, 4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gla*3", r"'gla\*3' is gla in every layer: write that name, or the whole stack in brackets"),
        ("gla,,vanilla", "cannot read layer '' of the stack 'gla,,vanilla': write NAME"),
        ("gla*0,vanilla", r"cannot read layer 'gla\*0'"),
        ("gla+gla", r"cannot read layer 'gla\+gla'"),
        ("gla,vanila", "unknown attention 'vanila': did you mean 'vanilla'"),
    ],
)
def test_mistakes_name_the_fix(name, message):
    with pytest.raises(UserError, match=message):
        ATTENTIONS.get(name)
    assert name not in ATTENTIONS


def test_the_period_is_repeated_to_the_depth_of_the_network():
    backbone = build_backbone("gpt2", attention="linear*2,vanilla", pattern="CS", num_layers=5, **SIZES)
    linear, vanilla = (ATTENTIONS.get(name).cls for name in ("linear", "vanilla"))
    kinds = [type(layer.self_attention) for layer in backbone.decoder_layers]
    assert kinds == [linear, linear, vanilla, linear, linear]
    with pytest.raises(UserError, match=r"stack 'linear\*2,vanilla' has 3 layers, and the network only 2 with pattern"):
        build_backbone("gpt2", attention="linear*2,vanilla", pattern="CS", num_layers=2, **SIZES)


def test_options_are_those_of_the_parts():
    spec = parse_spec({"name": "local+linear", "local": {"window_size": 8}})
    assert spec.options == {"local": {"window_size": 8}}
    for options, message in (
        ({"window_size": 8}, r"no option 'window_size' \(parts: local, linear\); set .* attention\.local\.window_size"),
        ({"local": {"window": 8}}, r"'window' \(options: extent, output_gate, short_convolution, window_size\)"),
        ({"local": {"window_size": 0}}, r"attention\.local\.window_size: .* greater than or equal to 1, got 0"),
    ):
        with pytest.raises(UserError, match=message):
            parse_spec({"name": "local+linear", **options})


def test_the_code_of_a_stack_is_that_of_all_parts_and_of_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr(ATTENTIONS, "_of_files", {})
    text = "from attentions.softmax import VanillaAttention\n\n\nclass Mine(VanillaAttention):\n    version = {}\n"
    codes = set()
    for edit in ("1", "2"):
        file = tmp_path / edit / "mine.py"
        file.parent.mkdir()
        file.write_text(text.format(edit))
        entry = ATTENTIONS.get(f"{file}:Mine*2,gla")
        assert entry.label == "Mine*2,gla"
        codes.add(code_of(entry.cls))
    codes |= {code_of(ATTENTIONS.get(name).cls) for name in ("vanilla", "gla,vanilla", "gla*2,vanilla", "vanilla+gla")}
    assert len(codes) == 6
    parts = {**modules_of([ATTENTIONS.get("gla").cls]), **modules_of([ATTENTIONS.get("vanilla").cls])}
    assert parts.items() <= modules_of([ATTENTIONS.get("gla,vanilla").cls]).items()


def test_a_run_names_a_stack_in_brackets_or_quotes():
    written = ("attention=[linear,linear,local+vanilla]", "attention='linear*2,local+vanilla'")
    cells = [Cell.from_config(compose([*CELL, name])) for name in written]
    assert {cell.label for cell in cells} == {"linear*2,local+vanilla"}
    assert len({cell.hash for cell in cells}) == 1
    assert cells[0].config.resolved["attention"]["local"]["window_size"] == 16
    changed = Cell.from_config(compose([*CELL, written[0], "attention.local.window_size=8"]))
    assert changed.label == "linear*2,local+vanilla(local.window_size=8)"
    assert changed.changed["attention.local.window_size"] == 8
    assert changed.attention_code == cells[0].attention_code != ""


def test_a_sweep_names_stacks_among_attentions():
    names = "attention=vanilla,[gla*3,vanilla],[local,fnet],[gla,fnet]"
    cells, left_out = expand([*CELL, names, "attention.local.window_size=8"])
    assert [cell[4] for cell in cells] == ["attention=vanilla", "attention=[gla*3,vanilla]"]
    assert len(cells[1]) == 6
    for text, (stack, supported) in zip(left_out, (("local", "NS CS"), ("gla", "CS")), strict=True):
        part = f"attention '{stack},fnet' does not support pattern CS (supported: {stack} {supported}, fnet NS)"
        assert text.startswith(part)


def test_outside_a_network_only_the_shares_of_a_stack_matter():
    entry = ATTENTIONS.get("linear*6,vanilla*3")
    assert entry.layers_at(SINGLE_LAYER, Pattern.CS) == [("linear",), ("linear",), ("vanilla",)]
    assert entry.layers_at(LayerPosition(8, 12), Pattern.CS) == [("vanilla",)]


def test_fairseq_reads_the_options_of_parts():
    options = {"local": {"window_size": 8, "extent": "total"}, "linear": {"kernel": "elu1"}}
    assert OmegaConf.to_container(OmegaConf.from_dotlist(attention_options(options).split())) == options


def test_a_decode_state_is_that_of_the_mean_layer():
    layers = [build_attention(n, pattern="CS", embed_dim=16, num_heads=2) for n in ("gla", "vanilla", "gla*3,vanilla")]
    gla, vanilla, mean = (state_bytes(layer, 10) for layer in layers)
    assert mean == (3 * gla + vanilla) // 4
    states = [measure_state(ATTENTIONS.get(name), {}) for name in ("gla", "vanilla", "gla,vanilla")]
    assert states[2] == State(states[1].numbers / 2, grows=True)


def test_tables_know_the_installed_code_of_a_stack():
    assert installed_code("gla,vanilla") == code_of(ATTENTIONS.get("gla,vanilla").cls)
    assert installed_code("gla,,vanilla") == installed_code("gla,unknown") == ""


def test_a_layer_of_another_library_is_no_stack():
    message = r"'gla\*3,vanilla' is a stack of CAB's backbones: name the attention of this"
    for make in (use_in_transformers, partial(FlaLayer, hidden_size=8, num_heads=2, layer_idx=0)):
        with pytest.raises(UserError, match=message):
            make("gla*3,vanilla")
