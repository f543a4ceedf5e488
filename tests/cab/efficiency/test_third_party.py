"""Third-party implementations: the index, its programs, and the comparison in the same rounds."""

import csv
from importlib.util import find_spec

import pytest
import torch

from cab.efficiency.setting import Setting
from cab.efficiency.subjects import AttentionSubject, has_projections
from cab.efficiency.third_party import CHECKOUT, INDEX_FILE, ThirdPartySubject
from cab.patterns import Pattern
from cab.registry.files import load_object
from cab.registry.registries import ATTENTIONS

SMALL = Setting(batch_size=2, embed_dim=8, num_heads=2, repeats=2)
ROWS = list(csv.DictReader((CHECKOUT / INDEX_FILE).open(newline="")))


def subject_of(row: dict[str, str], options: str = "") -> ThirdPartySubject:
    attention = AttentionSubject.parse(":".join(filter(None, (row["attention"], options))))
    return ThirdPartySubject(attention, row["name"], str(CHECKOUT / row["program"]), ())


@pytest.mark.parametrize("pattern", Pattern)
def test_multihead_attention_is_the_same_function_as_vanilla(pattern):
    subject = subject_of(next(row for row in ROWS if row["program"].endswith(":multihead_attention")))
    ours, theirs = subject.attention.build(pattern, SMALL), subject.build(pattern, SMALL)
    state = ours.state_dict()
    for part in ("weight", "bias"):
        state[f"in_proj_{part}"] = torch.cat([state.pop(f"{name}_proj.{part}") for name in "qkv"])
    theirs.module.load_state_dict(state)
    x, source = torch.randn(2, 7, 8), torch.randn(2, 7, 8)
    inputs = (x, source, source) if pattern.is_cross else (x,)
    torch.testing.assert_close(theirs(*inputs), ours(*inputs), rtol=1e-4, atol=1e-5)


def test_command_compares_in_the_same_rounds(efficiency):
    rows = {row["attention"]: row for row in efficiency("vanilla", "--lengths", "9", "--third-party")[0]}
    ours, theirs = rows["vanilla"], rows["vanilla@torch"]
    assert theirs["kind"] == "third_party"
    assert ours["best_third_party"] == "vanilla@torch"
    assert ours["speedup_vs_third_party"] == theirs["relative_to_softmax"]
    assert float(ours["bytes_ratio"]) == pytest.approx(int(ours["bytes"]) / int(theirs["bytes"]), rel=1e-5)


def test_index_is_complete():
    names = [(row["attention"], row["name"]) for row in ROWS]
    assert len(set(names)) == len(names)
    for row in ROWS:
        assert set(row["patterns"].split()) <= set(map(str, ATTENTIONS.get(row["attention"]).patterns))
        assert callable(load_object(str(CHECKOUT / row["program"])))


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
def test_implementation_has_the_shape_of_its_attention_and_gradients(row, pattern):
    subject = subject_of(row, OPTIONS.get(row["attention"], ""))
    ours, module = subject.attention.build(pattern, MEDIUM), subject.build(pattern, MEDIUM)
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
