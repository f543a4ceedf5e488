"""Modules of other packages: whole models, attention functions and factories."""

import csv
import math
from pathlib import Path

import pytest
import torch

from cab import UserError, verification
from cab.records.verified import package_of
from cab.verification import select_checks, verify_attention
from cab.verification.compare import difference
from cab.verification.foreign import subject_class
from cab.verification.foreign.hugging_face import pack, unpack

FILE = """
import torch
from torch import nn
from torch.nn import functional as F

def sound(q, k, v, causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

def leaky(q, k, v, is_causal):
    logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if is_causal:
        logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(2), -torch.inf)
    return logits.softmax(-1) @ v

def layer(embed_dim):
    return nn.Sequential(nn.Linear(embed_dim, embed_dim), nn.Tanh())

class Declares(nn.Module):
    internal_dtype, selects_tokens, unused_parameters = torch.bfloat16, True, ("spare",)

    def __init__(self, embed_dim):
        super().__init__()
        self.value, self.spare = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        coarse = self.value(x).bfloat16().float()
        return coarse + self.spare(x) if x.shape[1] > 200 else coarse

class Overflows(Declares):
    def forward(self, x):
        return self.value(x).masked_fill(x > 9.0, -1e9)

def declares(embed_dim):
    return Declares(embed_dim)

def needs_more(embed_dim, window):
    return layer(embed_dim)

def unhappy(embed_dim):
    raise ImportError("no such package")

class Needy(nn.Module):
    def __init__(self, pattern, window):
        super().__init__()

class Unmeasured(nn.Module):
    def __init__(self, width=16):
        super().__init__()

class Drops(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.0, rows=4):
        super().__init__()
        self.embed_dim, self.num_heads, self.dropout, self.rows = embed_dim, num_heads, dropout, min(rows, num_heads)
        self.value, self.out_proj = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)

    def forward(self, x):
        kept = F.dropout(x.new_ones(len(x), x.shape[1], x.shape[1], self.rows), self.dropout, self.training)
        weights = kept.expand(-1, -1, -1, self.num_heads) / x.shape[1]
        heads = self.value(x).unflatten(-1, (self.num_heads, -1))
        return self.out_proj(torch.einsum("bnmh,bmhe->bnhe", weights, heads).flatten(2))

class Shares(Drops):
    def __init__(self, embed_dim, num_heads, dropout=0.0):
        super().__init__(embed_dim, num_heads, dropout, rows=1)

def shares(embed_dim, num_heads, dropout):
    return Shares(embed_dim, num_heads, dropout)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "other.py"
    path.write_text(FILE)
    return path


HEADS = "lookahead_gradient batch_size same_seed context"
DECLARED = "float32_kept context_map parameters_in_every_batch"
DROPOUT = "dropout_per_head dropout_mean dropout_rate"
HEADS_OF_TORCH = "torch.nn:MultiheadAttention"
FAILED = [
    *(("{file}:sound", pattern, HEADS, "") for pattern in ("NS", "CS", "NC", "CC")),
    # It reads no other token, which is all that fails.
    ("{file}:layer", "NS", "context contract", "context_is_used context_map"),
    # A factory passes on what its module declares.
    ("{file}:Declares", "NS", DECLARED, ""),
    ("{file}:declares", "NS", DECLARED, ""),
    # Rows of padding give NaN in torch; other padding is right.
    (HEADS_OF_TORCH, "NS", "padding", "padded_row padding_gradient_row"),
    # In CS with padding on the left, torch's gradients are NaN in each of these calls, which is left to `padded_row`.
    (HEADS_OF_TORCH, "CS", "lengths_in_turn training_is_evaluation inference_mode padded_row", "padded_row"),
    ("{file}:Drops", "NS", DROPOUT, ""),
    *((f"{{file}}:{name}", "NS", DROPOUT, "dropout_per_head") for name in ("Shares", "shares")),
]


@pytest.mark.parametrize(("name", "pattern", "checks", "expected"), FAILED)
def test_checks_that_fail(file, name, pattern, checks, expected):
    results = verify_attention(subject_class(name.format(file=file)), pattern, checks=checks.split(), quick=True)
    assert results
    assert {result.check for result in results if not result.passed} == set(expected.split())


def test_equal_nan_is_no_difference():
    nan, ones = torch.full((1, 2, 3), torch.nan), torch.ones(1, 2, 3)
    assert [difference(nan, nan), difference(nan, ones), difference(ones, nan)] == [0.0, math.inf, math.inf]


def test_leak_of_a_function_is_found_at_once(file, cab):
    out, _ = cab("verify", f"{file}:leaky", "--pattern", "CS", "--quick", "--fail-fast", status=1)
    assert out.count("FAILED lookahead_gradient: ") == out.count("FAILED") == 1


def test_overflow_does_not_suggest_a_multiple_of_lengths(file):
    [result] = verify_attention(subject_class(f"{file}:Overflows"), "NS", checks=["autocast_gradient"], quick=True)
    assert "without overflow" in result.detail
    assert "length_multiple" not in result.detail


def test_window_and_package_of_a_model_are_known(tmp_path, cab, monkeypatch):
    assert subject_class("hf:mistral")().max_token_distance == 14
    assert package_of(subject_class(HEADS_OF_TORCH)) == f"torch {torch.__version__}"
    monkeypatch.setattr(verification, "select_checks", lambda *_names, quick: select_checks(["same_seed"], quick=quick))
    cab("verify", "hf:gpt2", "--quick", "--record", tmp_path / "rows.csv")
    [row] = csv.DictReader((tmp_path / "rows.csv").open())
    assert (row["attention"], row["package"].partition(" ")[0]) == ("hf:gpt2", "transformers")


def test_any_cache_is_packed_batch_first():
    cache = {"states": [torch.arange(6.0).view(2, 3), torch.ones(1, 2, 4)], "position": torch.tensor(7), "seen": 5}
    state = pack(cache, batch_size=2)
    assert all(x.shape[0] == 2 for x in state.values())
    again = unpack(state)
    assert again["seen"] == 5
    assert torch.equal(again["states"][1], cache["states"][1])
    again["states"][0].zero_()
    assert cache["states"][0].any()


MISTAKES = {
    "hf:gptj:rotary_dim=64": "cannot run .* at width 32 with 4 heads: .*rotary_dim=64: .* such as hf:gptj:rotary_dim=8",
    "hf:llama:hidden_size=33": "cannot build .*=33 for pattern CS from embed_dim num_heads: Strict",
    "hf:convbert:embedding_size=96": "the configuration has embedding_size=96: set another value",
    "hf:lama": "did you mean 'llama'",
    "hf:llama:width": "option 'width' has no value",
    "torch.nn:Nothing": "has no 'Nothing'",
    "no_such_package:Thing": "cannot import 'no_such_package'",
    "torch.nn:Conv1d": "requires the arguments in_channels",
    "not_imported:Mine": "write not_imported.py:Mine",
    "folder.not_imported:Mine": "write folder/not_imported.py:Mine",
    "./not_imported:Mine": r"write ./not_imported.py:Mine",
    **{wrong: f"'{wrong}' is not package.module:name" for wrong in (":X", "this:", ":", "this..x:Y", "..x:Y")},
    **{wrong: f"'{wrong}' has no model type; write hf:TYPE" for wrong in ("hf:", "hf::width=8")},
    "this.py:": "name a class: this.py:Class",
    "./nothing:Mine": "file './nothing' does not exist; name a registered attention",
    "this:Mine": "module 'this' has no 'Mine'; write this.py:Mine",
    "{file}:needs_more": "requires the arguments window",
    "{file}:Needy": r"cannot build Needy for pattern NS from pattern: TypeError.*'window'",
    "{file}:Unmeasured": "the width of Unmeasured is unknown",
    "{file}:unhappy": "cannot build unhappy for pattern NS: ImportError: ",
    "torch.nn.functional:scaled_dot_product_attention": "the arguments of scaled_dot_product_attention cannot be",
    "torch.nn.functional:np": "is an object of module",
    "hf:llama": r"does not support pattern NS \(supported: CS\)",
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(file, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    for path in ("not_imported.py", "folder/not_imported.py", "this.py"):  # `this` is also a module of Python
        Path(path).touch()
    with pytest.raises(UserError, match=MISTAKES[name]):
        verify_attention(
            subject_class(name.format(file=file)),
            "CS" if "gptj" in name or "size=33" in name else "NS",
            checks=["same_seed"],
            quick=True,
        )


SIGNATURES = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self, *, embed_dim, num_heads=4, pattern="CS", window=1, **other):
        super().__init__()
        if str(pattern) != "CS" or embed_dim % 64 or num_heads != 2 or window != 8:
            raise ValueError(f"{pattern} {embed_dim} {num_heads} {window}")
        self.linear, self.rest = nn.Linear(embed_dim, embed_dim), nn.Parameter(torch.zeros(0, embed_dim))
        self.layout = Rearranged()

    def forward(self, x):
        y = self.layout(torch.cat([self.rest.expand(len(x), -1, -1), self.linear(x)], 1))
        return y.cumsum(1) / torch.arange(1, 1 + x.shape[1])[:, None]

class Rearranged(nn.Module):  # its copies are in training mode, as those of the layers of einops

    def __getstate__(self):
        return {}

    def __setstate__(self, state):
        super().__init__()

    def forward(self, x):
        return x

class Masked(Layer):
    def forward(self, x, key_padding_mask=None, attn_mask=None):
        return super().forward(x)

def factory(pattern, embed_dim, num_heads, window):
    return Layer(embed_dim=embed_dim, num_heads=num_heads, pattern=pattern, window=window)

def any_arguments(**all):
    return Layer(**all)
"""
OPTIONS = {"embed_dim": 64, "num_heads": 2, "window": 8}


@pytest.mark.parametrize(
    "target", ["layers.py:Layer", "layers:Layer", "layers.py:Masked", "layers.py:factory", "layers:any_arguments"]
)
def test_every_entrance_inspects_the_signature(target, tmp_path, monkeypatch):
    """The pattern, sizes and options of the user alone are probed; what does not affect the output does not fail."""
    (tmp_path / "layers.py").write_text(SIGNATURES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    cls = subject_class(target)
    checks = ["copied_module", "parameters_learn", "same_seed", "strided_inputs", "lookahead_gradient"]
    results = verify_attention(cls, "CS", options=OPTIONS, checks=checks, quick=True)
    assert [result.detail for result in results if not result.passed] == []
    assert len(results) == len(checks)
    with pytest.raises(UserError, match=r"cannot build|no option 'other'"):
        verify_attention(cls, "CS", options=OPTIONS | {"other": 1, "window": 3}, checks=checks, quick=True)
