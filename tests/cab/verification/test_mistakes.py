"""Each frequent mistake in a class has a message that says what to write instead."""

from __future__ import annotations

import functools
import io
import re
import sys
from xml.etree import ElementTree

import pytest
from tqdm import tqdm

from cab.cli.main import main

CLASSES = """
import torch
from torch import nn
from cab import Attention

class Sound(Attention):
    def weights(self, query, key, padding):
        logits = query @ key.mT * self.scale
        if padding.key is not None:
            logits = logits.masked_fill(padding.key[:, None, None], torch.finfo(logits.dtype).min)
        if self.pattern.is_causal:
            logits = logits.masked_fill(torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
        return logits.softmax(-1)
    def attend(self, query, key, value, padding):
        return self.weights(query, key, padding) @ value
class WrongShape(Sound):
    def attend(self, *heads):
        return super().attend(*heads).flatten(1, 2)
class Leak(Sound):
    def weights(self, query, key, padding):
        return (query @ key.mT).softmax(-1)
class Unpadded(Leak):
    pass
class StateInPlace(Attention):
    def attend(self, query, key, value, padding):
        return value.cumsum(2)
    def init_decode_state(self, batch_size, like):
        return {"sum": like.new_zeros(batch_size, self.num_heads, 1, self.head_dim)}
    def decode(self, query, key, value, state, padding):
        state["sum"] += value
        return state["sum"].clone(), state
class EmptyRows(Sound):
    def weights(self, query, key, padding):
        logits = query @ key.mT
        if padding.key is not None:
            logits = logits.masked_fill(padding.key[:, None, None], float("-inf"))
        return logits.softmax(-1)
class DoubleBuffer(Sound):
    def __init__(self, **common):
        super().__init__(**common)
        self.register_buffer("decay", torch.ones(8, 8, dtype=torch.float64))
    def attend(self, query, key, value, padding):
        return super().attend(query @ self.decay, key, value, padding)
class DoubleResult(Sound):
    def attend(self, *heads):
        return super().attend(*heads).double()
class PlainTensor(Sound):
    def __init__(self, **common):
        super().__init__(**common)
        self.table = torch.randn(8)
    def attend(self, query, key, value, padding):
        return super().attend(query + self.table, key, value, padding)
class NoSuper(Sound):
    def __init__(self, pattern, embed_dim, num_heads, dropout=0.0):
        self.gate = nn.Linear(embed_dim, embed_dim)
class ModuleSuper(Sound):
    def __init__(self, pattern, embed_dim, num_heads, dropout=0.0):
        nn.Module.__init__(self)
class Positional(Sound):
    def __init__(self, pattern, embed_dim, num_heads, dropout=0.0):
        super().__init__(pattern, embed_dim, num_heads)
class Forward(Sound):
    def forward(self, hidden_states, attention_mask=None, **more):
        return hidden_states, None
class MaskArgument(Sound):
    def attend(self, q, k, v, mask):
        logits = q @ k.mT
        if mask is not None:
            logits = logits.masked_fill(mask[:, None, None], float("-inf"))
        return logits.softmax(-1) @ v
class MaskAdded(Sound):
    def attend(self, q, k, v, mask):
        return (q @ k.mT + mask).softmax(-1) @ v
class ThreeArguments(Sound):
    def attend(self, q, k, v):
        return v
class NoAttend(Attention):
    pass
class FromConfig(nn.Module):
    def __init__(self, config):
        super().__init__()
class NoMasks(nn.Module):
    def __init__(self, embed_dim):
        super().__init__()
        self.embed_dim, self.linear = embed_dim, nn.Linear(embed_dim, embed_dim)
    def forward(self, query, key=None, value=None):
        return self.linear(query)
class LateCrash(Sound):
    def attend(self, query, key, value, padding):
        return self.blocks(query) if query.shape[2] % 64 else super().attend(query, key, value, padding)
    def blocks(self, query):
        return query.unflatten(2, (-1, 64)).flatten(2, 3)
class Prints(Sound):
    def attend(self, query, *rest):
        print("shape", query.shape)
        return super().attend(query, *rest)
"""

MESSAGES = {
    "WrongShape": (2, "same_seed", r"must return \[B, H, N, E\] with B = 2, N = 64 and H E = 32, got \[2, 256, 8\]"),
    "Leak": (1, "lookahead_gradient", r"FAILED lookahead_gradient: .* output \d+ depends on token \d+, n="),
    "Unpadded": (1, "padded_right", r"padded keys or positions change the output \(padding right\): relative error"),
    "StateInPlace": (
        1,
        "decode_keeps_state",
        "a call writes into `sum`, which it received: return new tensors: modified arguments of a step",
    ),
    "EmptyRows": (
        1,
        "padded_row",
        r"padding alone makes the gradient of [\w.]+ NaN or inf: mask weights with torch.finfo",
    ),
    "DoubleBuffer": (2, "same_seed", r"`return .* @ self.decay.*`.*register constants as float32 buffers"),
    "DoubleResult": (2, "same_seed", "attend must return the dtype of the query, torch.float32, got torch.float64"),
    "PlainTensor": (1, "state_dict_complete", r"lacks PlainTensor.table: use self.register_buffer\(name, tensor\)"),
    "NoSuper": (2, "same_seed", r"start the constructor with super\(\).__init__\(...\)"),
    "ModuleSuper": (2, "same_seed", r"cab.Attention receives pattern=pattern, embed_dim=embed_dim"),
    "Positional": (2, "same_seed", r"by name: super\(\).__init__\(pattern=pattern, embed_dim=embed_dim"),
    "Forward": (
        2,
        "same_seed",
        r"got tuple; do not override forward; write attend\(self, query, key, value, padding\)",
    ),
    "MaskArgument": (
        2,
        "same_seed",
        r"mistaken.py:\d+ in attend: `logits = .*use padding.key \[B, M\], True at padding",
    ),
    "MaskAdded": (2, "same_seed", r"use padding.key \[B, M\], True at padding, or None"),
    "ThreeArguments": (2, "same_seed", "attend receives query, key, value and padding"),
    "NoAttend": (2, "same_seed", r"write attend\(self, query, key, value, padding\), which returns \[B, H, N, E\]"),
    "NoMasks": (0, "same_seed", "accepts no padding masks; padding is not verified"),
    "FromConfig": (2, "same_seed", "verify a function in a file that accepts some of these four"),
}
"""Exit status, check and message of each class."""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("classes") / "mistaken.py"
    path.write_text(CLASSES)
    return path


def verify(capsys, target, *arguments, pattern="CS"):
    status = main(["verify", str(target), "--pattern", pattern, "--quick", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("name", MESSAGES)
def test_message(name, file, capsys):
    expected, check, message = MESSAGES[name]
    status, out, err = verify(capsys, f"{file}:{name}", "--checks", check, pattern="NS" if name == "Unpadded" else "CS")
    assert status == expected
    assert len(re.findall(message, out + err)) == 1
    assert len(out.splitlines()) <= 25
    assert "Traceback" not in err


def test_an_exception_is_shown_once_with_its_lines(file, capsys):
    """Group of checks: one line; the three innermost lines of the file; all repetitions counted."""
    status, out, err = verify(capsys, f"{file}:LateCrash", "--checks", "determinism,causality,padding")
    assert status == 1
    first, *others = out.splitlines()
    assert re.search(
        r"FAILED inputs_untouched: raised at n=33 RuntimeError: unflatten.*"
        r"mistaken.py:\d+ in blocks: `return query.unflatten.*`, called from .*mistaken.py:\d+ in attend: ",
        first,
    )
    assert [line.split()[0] for line in others[:2]] == ["causality", "padding"]
    assert all(line.endswith("FAILED with the same error") for line in others[:2])
    headline = r"LateCrash CS: raised at n=33 RuntimeError: unflatten: .* \(inputs_untouched\); \d+ further checks .*"
    assert re.fullmatch(headline, others[2])
    assert (out + err).count("called from") == 1


@pytest.mark.parametrize(("name", "check"), [("FromConfig", "same_seed"), ("Sound", "unknown")])
def test_junit_of_an_error_is_one_case(name, check, file, capsys, tmp_path):
    """The file of an earlier run is replaced."""
    path = tmp_path / "verify.xml"
    path.write_text("earlier")
    assert verify(capsys, f"{file}:{name}", "--checks", check, "--junit", str(path))[0] == 2
    suite = ElementTree.parse(path).getroot()
    assert (suite.get("errors"), len(suite), suite[0][0].tag) == ("1", 1, "error")


def test_correct_class_has_one_line_per_group(file, capsys):
    status, out, _ = verify(capsys, f"{file}:Sound", "--checks", "contract,same_seed,padding_output")
    assert status == 0
    assert [re.sub(r" +[\d.]+ s$", "", line) for line in out.splitlines()] == [
        "determinism        1 check",
        "contract          6 checks",
        "padding            1 check",
        "8 checks, 0 failed",
    ]


def test_several_patterns_have_one_line_each(file, capsys):
    status, out, _ = verify(capsys, f"{file}:Sound", "--checks", "same_seed", pattern="NS,CS")
    assert (status, out) == (0, "Sound NS: 1 check, 0 failed\nSound CS: 1 check, 0 failed\n2 checks, 0 failed\n")


def test_verbose_has_one_row_per_check(file, capsys):
    _, out, _ = verify(capsys, f"{file}:Unpadded", "--checks", "padded_right,same_seed", "-v", pattern="NS")
    rows = [line.split()[:2] for line in out.splitlines() if line.startswith("  ")]
    assert rows == [["same_seed", "ok"], ["padded_right", "FAILED"]]


def test_output_of_a_module_is_not_in_the_table(file, capsys):
    _, out, err = verify(capsys, f"{file}:Prints", "--checks", "same_seed", "--csv")
    assert "shape torch.Size" in err
    assert [line.split(",")[0] for line in out.splitlines()] == ["attention", "Prints"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_shows_a_counter(file, capsys, monkeypatch):
    """It is cleared before a line of the table is printed."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(tqdm, "__init__", functools.partialmethod(tqdm.__init__, mininterval=0, ncols=80))
    assert main(["verify", f"{file}:Sound", "--pattern", "CS", "--checks", "same_seed,padding_output", "--quick"]) == 0
    assert "Sound CS: 1 of 2 checks" in sys.stderr.getvalue()
    assert capsys.readouterr().out.count("\n") == 3
