"""Each frequent mistake in a class has a message that says what to write instead."""

import re
from xml.etree import ElementTree

import pytest

CLASSES = r"""
import torch
from torch import nn
from cab import Attention

class Sound(Attention):
    least = torch.finfo(torch.float32).min
    def weights(self, query, key, padding):
        logits = query @ key.mT * self.scale
        if padding.key is not None:
            logits = logits.masked_fill(padding.key[:, None, None], self.least)
        if self.pattern.is_causal:
            logits = logits.masked_fill(torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
        return logits.softmax(-1)
    def attend(self, query, key, value, padding):
        return self.weights(query, key, padding) @ value
class Prints(Sound):
    def attend(self, *heads): print("shape"); return super().attend(*heads)
class WrongShape(Sound):  # 2 same_seed: must return \[B, H, N, E\] with B = 2, N = 64 and H E = 32, got \[2, 256, 8\]
    def attend(self, *heads): return super().attend(*heads).flatten(1, 2)
class Leak(Sound):  # 1 lookahead_gradient: FAILED lookahead_gradient: .* output \d+ depends on token \d+, n=
    def weights(self, query, key, padding): return (query @ key.mT).softmax(-1)
class Unpadded(Leak):  # 1 padded_right: padded keys or positions change the output \(padding right\): relative error
    pass
class StateInPlace(Attention):  # 1 decode_keeps_state: a call writes into `sum`, which it received: return new tensors
    def attend(self, query, key, value, padding): return value.cumsum(2)
    def init_decode_state(self, batch_size, like):
        return {"sum": like.new_zeros(batch_size, self.num_heads, 1, self.head_dim)}
    def decode(self, query, key, value, state, padding):
        state["sum"] += value
        return state["sum"].clone(), state
class EmptyRows(Sound):  # 1 padded_row: alone makes the gradient of [\w.]+ NaN or inf: mask weights with torch.finfo
    least = float("-inf")
class DoubleBuffer(Sound):  # 2 same_seed: `return .* @ self.decay.*`.*register constants as float32 buffers
    def __init__(self, **common):
        super().__init__(**common)
        self.register_buffer("decay", torch.ones(8, 8, dtype=torch.float64))
    def attend(self, query, key, value, padding):
        return super().attend(query @ self.decay, key, value, padding)
class DoubleResult(Sound):  # 2 same_seed: attend must return the dtype of the query, torch.float32, got torch.float64
    def attend(self, *heads): return super().attend(*heads).double()
class PlainTensor(Sound):  # 1 state_dict_complete: lacks PlainTensor.table: use self.register_buffer\(name, tensor\)
    def __init__(self, **common):
        super().__init__(**common)
        self.table = torch.randn(8)
    def attend(self, query, key, value, padding): return super().attend(query + self.table, key, value, padding)
class NoSuper(Sound):  # 2 same_seed: start the constructor with super\(\).__init__\(...\)
    def __init__(self, pattern, embed_dim, num_heads): self.gate = nn.Linear(embed_dim, embed_dim)
class ModuleSuper(Sound):  # 2 same_seed: cab.Attention receives pattern=pattern, embed_dim=embed_dim
    def __init__(self, pattern, embed_dim, num_heads): nn.Module.__init__(self)
class Positional(Sound):  # 2 same_seed: by name: super\(\).__init__\(pattern=pattern, embed_dim=embed_dim
    def __init__(self, pattern, embed_dim, num_heads): super().__init__(pattern, embed_dim, num_heads)
class Forward(Sound):  # 2 same_seed: got tuple; do not override forward; write attend\(self, query, key, value
    def forward(self, hidden_states, attention_mask=None, **more): return hidden_states, None
class MaskArgument(Sound):  # 2 same_seed: mistaken.py:\d+ in attend: `logits = .*use padding.key \[B, M\], True
    def attend(self, q, k, v, mask):
        logits = (q @ k.mT).masked_fill(mask[:, None, None], float("-inf")) if mask is not None else q @ k.mT
        return logits.softmax(-1) @ v
class MaskAdded(Sound):  # 2 same_seed: use padding.key \[B, M\], True at padding, or None
    def attend(self, q, k, v, mask): return (q @ k.mT + mask).softmax(-1) @ v
class ThreeArguments(Sound):  # 2 same_seed: attend receives query, key, value and padding
    def attend(self, q, k, v): return v
class NoAttend(Attention):  # 2 same_seed: write attend\(self, query, key, value, padding\), which returns \[B, H, N
    pass
class NoMasks(nn.Module):  # 0 same_seed: accepts no padding masks; padding is not verified
    def __init__(self, embed_dim):
        super().__init__()
        self.linear = nn.Linear(embed_dim, embed_dim)
    def forward(self, query, key=None, value=None): return self.linear(query)
class FromConfig(nn.Module):  # 2 same_seed: verify a function in a file that accepts some of these four
    def __init__(self, config): super().__init__()
class LateCrash(Sound):  # 1 determinism,causality,padding: FAILED inputs_untouched: raised at n=33 RuntimeError
    def attend(self, query, key, value, padding):
        return self.blocks(query) if query.shape[2] % 64 else super().attend(query, key, value, padding)
    def blocks(self, query):
        return query.unflatten(2, (-1, 64)).flatten(2, 3)
"""
"""Each mistake with exit status, checks and message."""

MISTAKES = re.findall(r"^class (\w+)\(.*\):  # (\d) (\S+): (.*)$", CLASSES, re.MULTILINE)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("classes") / "mistaken.py"
    path.write_text(CLASSES)
    return path


@pytest.mark.parametrize(("name", "status", "checks", "message"), MISTAKES)
def test_message(name, status, checks, message, file, cab):
    pattern = "NS" if name == "Unpadded" else "CS"
    out, err = cab("verify", f"{file}:{name}", "--pattern", pattern, "--quick", "--checks", checks, status=int(status))
    assert len(re.findall(message, out + err)) == 1
    assert len(out.splitlines()) <= 25
    assert "Traceback" not in err
    if name == "LateCrash":  # one line per group, and the innermost lines of the file once
        lines = [line for line in out.splitlines() if line.endswith("FAILED with the same error")]
        assert [line.split()[0] for line in lines] == ["causality", "padding"]
        where = r"mistaken.py:\d+ in blocks: `return query.unflatten.*`, called from .*mistaken.py:\d+ in attend: "
        assert len(re.findall(where, out + err)) == (out + err).count("called from") == 1


@pytest.mark.parametrize(("name", "checks"), [("FromConfig", "same_seed"), ("Sound", "unknown")])
def test_junit_of_an_error_is_one_case(name, checks, file, cab, tmp_path):
    """The file of an earlier run is replaced."""
    path = tmp_path / "verify.xml"
    path.write_text("earlier")
    cab("verify", f"{file}:{name}", "--pattern", "CS", "--checks", checks, "--junit", path, status=2)
    suite = ElementTree.parse(path).getroot()
    assert (suite.get("errors"), len(suite), suite[0][0].tag) == ("1", 1, "error")


def test_output_of_a_module_is_not_in_the_table(file, cab):
    out, err = cab("verify", f"{file}:Prints", "--pattern", "CS", "--quick", "--checks", "same_seed", "--csv")
    assert "shape" in err
    assert [line.split(",")[0] for line in out.splitlines()] == ["attention", "Prints"]
