"""Third-party implementations: the index, its programs, and the comparison in the same rounds."""

from __future__ import annotations

import csv
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from cab.cli.main import main
from cab.efficiency.protocols import measure_length
from cab.efficiency.setting import Setting
from cab.efficiency.subjects import AttentionSubject, has_projections
from cab.efficiency.third_party import CHECKOUT, INDEX, ThirdPartySubject, find_implementations, is_installed
from cab.patterns import Pattern
from cab.registry.files import load_object
from cab.registry.registries import ATTENTIONS

SMALL = Setting(batch_size=2, embed_dim=8, num_heads=2, repeats=2)
ROWS = list(csv.DictReader((CHECKOUT / INDEX).open(newline="")))


def subject_of(program: str, options: str = "") -> ThirdPartySubject:
    [row] = [row for row in ROWS if row["program"].endswith(f":{program}")]
    attention = AttentionSubject.parse(":".join(filter(None, (row["attention"], options))))
    patterns = tuple(map(Pattern.parse, row["patterns"].split()))
    return ThirdPartySubject(attention, row["name"], str(CHECKOUT / row["program"]), patterns)


@pytest.mark.parametrize("pattern", Pattern)
def test_multihead_attention_is_the_same_function_as_vanilla(pattern: Pattern) -> None:
    subject = subject_of("multihead_attention")
    ours, theirs = subject.attention.build(pattern, SMALL), subject.build(pattern, SMALL)
    state = ours.state_dict()
    theirs.module.load_state_dict(
        {
            "in_proj_weight": torch.cat([state[f"{name}_proj.weight"] for name in "qkv"]),
            "in_proj_bias": torch.cat([state[f"{name}_proj.bias"] for name in "qkv"]),
            "out_proj.weight": state["out_proj.weight"],
            "out_proj.bias": state["out_proj.bias"],
        }
    )
    x, source = torch.randn(2, 7, 8), torch.randn(2, 7, 8)
    inputs = (x, source, source) if pattern.is_cross else (x,)
    torch.testing.assert_close(theirs(*inputs), ours(*inputs), rtol=1e-4, atol=1e-5)


def test_command_compares_in_the_same_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "costs.csv"
    sizes = ["--batch-size", "1", "--embed-dim", "8", "--num-heads", "2", "--repeats", "2", "--device", "cpu"]
    command = ["efficiency", "vanilla", "--lengths", "9", *sizes, "--no-verify", "--out", str(out), "--third-party"]
    assert main(command) == 0
    rows = {row["attention"]: row for row in csv.DictReader(out.open(newline=""))}
    ours, theirs = rows["vanilla"], rows["vanilla@torch"]
    assert theirs["kind"] == "third_party"
    assert ours["best_third_party"] == "vanilla@torch"
    assert ours["speedup_vs_third_party"] == theirs["relative_to_softmax"]
    assert float(ours["bytes_ratio"]) == pytest.approx(int(ours["bytes"]) / int(theirs["bytes"]), rel=1e-5)
    table = next(text for text in capsys.readouterr().out.split("\n\n") if "ms beyond the projections" in text)
    times = [1e3 * float(row["seconds_without_projections"]) for row in (ours, theirs)]
    sizes = [int(row["bytes"]) / 2**20 for row in (ours, theirs)]
    name, version, *numbers = table.splitlines()[-1].replace("/", "").split()
    assert (name, version) == ("vanilla", "(torch)")
    assert list(map(float, numbers)) == pytest.approx([*times, *sizes], rel=1e-2)


def test_folder_of_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its options are those of the attention, its patterns those of both; what it prints does not reach stdout."""
    assert main(["efficiency", "local", "--no-verify", "--third-party", str(tmp_path)]) == 2
    assert f"no {INDEX} in {tmp_path}; pass the folder" in capsys.readouterr().err
    header = ",".join(ROWS[0])
    rows = ["local,other,torch,torch,NS NC,,m.py:make", "local,missing,some-package,no_such_module,NS,,m.py:make"]
    (tmp_path / INDEX).write_text("\n".join([header, *rows]) + "\n")
    source = "def make(pattern, embed_dim, window_size):\n    print('welcome')\n    assert window_size == 128\n"
    (tmp_path / "m.py").write_text(f"from torch import nn\n{source}    return nn.Linear(embed_dim, embed_dim)\n")
    attentions = [AttentionSubject.parse(name) for name in ("local:window_size=128", "s4d")]
    [subject], notes = find_implementations(attentions, tmp_path)
    assert (subject.label, subject.patterns) == ("local:window_size=128@other", (Pattern.NS,))
    assert subject.build(Pattern.NS, SMALL)(torch.ones(1, 8)).shape == (1, 8)
    assert capsys.readouterr().out == ""
    assert notes == [
        "local:window_size=128: some-package is not installed; run `pip install some-package`",
        "no third-party implementation is known for: s4d",
    ]


def test_index_is_complete() -> None:
    names = [(row["attention"], row["name"]) for row in ROWS]
    assert len(set(names)) == len(names)
    for row in ROWS:
        assert set(row["patterns"].split()) <= set(map(str, ATTENTIONS.get(row["attention"]).patterns))
        assert callable(load_object(str(CHECKOUT / row["program"])))


# --- every installed implementation ---------------------------------------------------------------------------

LENGTH = 256
OPTIONS = {
    "bigbird": "block_size=16",
    "compressive": "segment=64:memory=64:compressed=32",
    "longformer": "window=32",
    "nsa": "block_size=16:num_blocks=4:window_size=32:compress_size=16:compress_stride=8",
    "routing": "num_clusters=8:window=64",
    "set_transformer": "feedforward=false",
}
"""Options for 256 tokens, where the defaults of the attention are for more."""

MEDIUM = Setting(batch_size=2, embed_dim=128, num_heads=2)
CASES = [
    pytest.param(
        row,
        Pattern.parse(pattern),
        id=f"{row['attention']}-{row['name']}-{pattern}",
        marks=() if row["module"] == "torch" else pytest.mark.slow,
    )
    for row in ROWS
    if not row["needs_cuda"] and find_spec(row["module"]) is not None
    for pattern in row["patterns"].split()
]


@pytest.mark.parametrize(("row", "pattern"), CASES)
def test_implementation_has_the_shape_of_its_attention_and_gradients(row: dict[str, str], pattern: Pattern) -> None:
    options = OPTIONS.get(row["attention"], "")
    attention = AttentionSubject.parse(":".join(filter(None, (row["attention"], options))))
    module = ThirdPartySubject(attention, row["name"], str(CHECKOUT / row["program"]), ()).build(pattern, MEDIUM)
    ours = attention.build(pattern, MEDIUM)
    assert has_projections(module) == has_projections(ours)
    x, source = (torch.randn(2, LENGTH, 128, requires_grad=True) for _ in range(2))
    inputs = (x, source, source) if pattern.is_cross else (x,)
    output = module(*inputs)
    assert output.shape == x.shape
    output.backward(torch.randn_like(output))
    gradients = [x.grad, *(parameter.grad for parameter in module.parameters()), *([source.grad] * pattern.is_cross)]
    assert all(gradient.isfinite().all() for gradient in gradients if gradient is not None)
    assert x.grad is not None
    if pattern is Pattern.CS:
        x.grad = None
        module.eval()(x)[:, :100].square().sum().backward()
        assert not x.grad[:, 100:].any()


@pytest.mark.parametrize(
    ("program", "options", "message"),
    [
        ("longformer", "window=4", "multiple of 8, got 9"),
        ("longformer", "dilation=2", "dilation=2 is not supported"),
        ("set_transformer", "feedforward=false", "head dimension 4 is not supported (only 64)"),
    ],
)
def test_unsupported_length_or_option_is_a_status(program: str, options: str, message: str) -> None:
    [cost] = measure_length([subject_of(program, options)], Pattern.NS, "forward", 9, SMALL)
    assert cost.status == "unsupported"
    assert message in cost.detail


@pytest.mark.parametrize("module", ["no_such_package.layers", "torch.no_such_module", "no_such_module"])
def test_a_module_that_is_not_installed(module: str) -> None:
    assert not is_installed(module)
    assert is_installed("torch.nn")


LAYERS = [row for row in ROWS if row["name"] == "fla-layer" and is_installed(row["module"])]
"""None without flash-linear-attention, whose models are no requirement: fla-core has the kernels."""


@pytest.mark.parametrize("row", LAYERS, ids=lambda row: row["attention"])
def test_layers_of_flash_linear_attention_have_the_size_of_ours(row: dict[str, str]) -> None:
    subject = subject_of(row["program"].partition(":")[2])
    layers = [built.build(Pattern.CS, Setting()) for built in (subject, subject.attention)]
    theirs, ours = (sum(weights.numel() for weights in layer.parameters()) for layer in layers)
    assert theirs == pytest.approx(ours, rel=0.01)
