"""Correct modules pass every check that applies to them: attentions, and modules of other packages in any layout."""

from collections import namedtuple
from dataclasses import make_dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from cab.registry.registries import ATTENTIONS
from cab.verification import verify_attention
from cab.verification.foreign import adapter_of, subject_class
from tests.cab.verification.planted import mutations, sound, sound_learning
from tests.cab.verification.planted.mutations import NEVER, failures, future, variant


class FixedWidth(sound.PlainAverage):
    """Of one width and one pattern."""

    embed_dim = 20

    def __init__(self):
        super().__init__("CS", self.embed_dim)


class InsideBfloat16(sound.Mapped):
    """Causal softmax attention that computes in bfloat16 whatever it is given, as many GPU kernels do."""

    internal_dtype = torch.bfloat16

    def forward(self, query, *, key_padding_mask=None, **_same):
        if key_padding_mask is not None:
            query = query.masked_fill(key_padding_mask[..., None], 0.0)
        q, k, v = (linear(query).bfloat16() for linear in self.maps)
        hidden = future(query.shape[1])
        if key_padding_mask is not None:
            hidden = hidden | key_padding_mask[:, None]
        hidden = hidden & ~torch.eye(query.shape[1], dtype=torch.bool)
        return ((q @ k.mT * query.shape[-1] ** -0.5).masked_fill(hidden, NEVER).softmax(-1) @ v).to(query.dtype)


class TokensFirst(sound.PlainAverage):
    """The causal mean of tokens [N, B, D]."""

    batch_first = False

    def forward(self, x):
        return self.value(x).cumsum(0) / torch.arange(1, 1 + len(x)).to(x)[:, None, None]


class TokensFirstMasked(sound.Mapped):
    """Attention with the layout and masks of ``torch.nn.MultiheadAttention``, which give finite values everywhere."""

    batch_first = False

    def forward(self, query, key, value, key_padding_mask=None, attn_mask=None):
        hidden = attn_mask[None]
        if key_padding_mask is not None:
            hidden = hidden | key_padding_mask[:, None]
        q, k, v = (linear(x).transpose(0, 1) for linear, x in zip(self.maps, (query, key, value), strict=True))
        weights = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, torch.finfo(q.dtype).min).softmax(-1)
        return (weights @ v).transpose(0, 1), weights


Outputs = namedtuple("Outputs", "output weights")
Structure = make_dataclass("Structure", ["output", "weights"])


class Contained(TokensFirst):
    """The mean of tokens [B, N, D], in a container, of which the first value is the output."""

    batch_first = True
    container = Outputs

    def forward(self, x):
        return self.container(output=super().forward(x.transpose(0, 1)).transpose(0, 1), weights=None)


PLAIN = [
    (mutations.Weighted, "NS", "n^2"),
    (mutations.Weighted, "CS", "n^2"),
    (sound.PlainAverage, "NS", "n"),
    (sound.PlainAverage, "CS", "n"),
    (sound.PlainCross, "NC", "n^2"),
    (sound.PlainCross, "CC", "n^2"),
    (FixedWidth, "CS", "n"),
    (InsideBfloat16, "CS", "n^2"),
    (sound.CachedAverage, "CS", "n"),
]
LEARNING = (sound_learning.Gated, sound_learning.Sharpened, sound_learning.Clustered, sound_learning.Deep)
SLOW = [pytest.param(cls, p, marks=pytest.mark.slow) for cls in LEARNING for p in ("NS", "CS", "NC", "CC")]
"""The long checks of these are those of the plain ones."""


@pytest.mark.parametrize(("cls", "pattern"), [(sound.PlainCross, "NC"), (sound.CachedAverage, "CS"), *SLOW])
def test_sound_attention_passes_quickly(cls, pattern):
    assert failures(cls, pattern) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "pattern", "complexity"), PLAIN)
def test_sound_attention_passes_in_full(cls, pattern, complexity):
    assert failures(cls, pattern, quick=False, complexity=complexity, long=mutations.MEDIUM) == {}


class Frozen(sound.PlainAverage):
    def __init__(self, pattern, embed_dim):
        super().__init__(pattern, embed_dim)
        self.table = nn.Parameter(torch.zeros(3, 3), requires_grad=False)


class Experts(sound.PlainAverage):
    """Adds to each token what its best expert says, in float32 alone: a small change may choose another expert."""

    def __init__(self, pattern, embed_dim):
        super().__init__(pattern, embed_dim)
        self.router = nn.Linear(embed_dim, 32)
        self.experts = nn.Parameter(torch.randn(32, embed_dim))

    def forward(self, query, **call):
        if query.dtype is torch.float64:
            raise TypeError("experts compute in float32")
        score, chosen = self.router(query).softmax(-1).max(-1)
        return super().forward(query, **call) + 32.0 * score.unsqueeze(-1) * self.experts[chosen]


STACK = "lookahead_gradient padded_left rows_independent decode_steps decode_padded_left state_has_rows"
LAYOUT = "determinism contract batches lengths causality padding gradient_is_derivative"
ENCODER = "padding_of_nothing padded_right padded_left padded_single_token"
SOUND = {
    "gated": (sound_learning.Gated, "CS", "learning"),
    "sharpened": (sound_learning.Sharpened, "CS", "learning"),
    "clustered": (sound_learning.Clustered, "CS", "learning"),
    # In CC, the base class stores the prefix.
    "own decoding": (variant(sound_learning.Gated, encode_source=None), "CS", "step_growth"),
    "own decoding in CS alone": (variant(sound_learning.Gated, encode_source=None), "CC", "step_growth"),
    "parts of a stack": (ATTENTIONS.get("gla,vanilla").cls, "CS", STACK),
    "parts side by side": (ATTENTIONS.get("local+linear").cls, "NS", STACK),
    "choice of experts": (Experts, "CS", "gradient_is_derivative model_sizes_gradient"),
    "frozen parameter": (Frozen, "NS", "gradient_is_derivative parameters_learn"),
    "kind of checkpoint that only allows backward": (
        variant(sound.PlainAverage, forward=lambda c: checkpoint(lambda x: c.but(query=x), c.q, use_reentrant=True)),
        "CS",
        "lookahead_gradient training_is_evaluation gradient_is_derivative context_map",
    ),
    # It adds little to its input, and its outputs have a constant sum.
    "normalized block with a residual connection": (
        variant(sound.PlainAverage, forward=lambda c: F.layer_norm(c.query + 0.1 * c.y, c.query.shape[-1:])),
        "NS",
        "second_derivative context_is_used",
    ),
    # Padding of other packages may be NaN at first, but is finite.
    "padding times zero": (
        variant(sound.PlainAverage, forward=lambda c: c.y + 0 * c.q.sum(1, keepdim=True)),
        "NS",
        "padding_poison_right",
    ),
    "tokens first": (TokensFirst, "CS", LAYOUT),
    "tokens first with masks": (TokensFirstMasked, "CS", "contract causality padding"),
    "factory": (adapter_of(lambda embed_dim: TokensFirstMasked(embed_dim), "f"), "CS", "padded_left"),
    "named tuple": (Contained, "CS", "determinism gradient_is_derivative"),
    "dict": (variant(Contained, container=dict), "CS", "determinism"),
    "dataclass": (variant(Contained, container=Structure), "CS", "determinism"),
    "factory of containers": (adapter_of(lambda embed_dim: Contained("CS", embed_dim), "f"), "CS", "determinism"),
    "function of transformers": (
        "transformers.models.llama.modeling_llama:eager_attention_forward",
        "CS",
        "lookahead_gradient padding gradient_is_derivative",
    ),
    "llama": ("hf:llama", "CS", "lookahead_gradient padded_left decode_after_prefill parameters_learn"),
    "declared window": ("hf:mistral", "CS", "token_distance decode_padded_left"),
    "positions counted from the mask": ("hf:bert", "NS", ENCODER),
    "positions counted from 2": ("hf:roberta", "NS", ENCODER),
}
WHOLE_MODELS = {"hf:llama": "CS", "hf:gpt2": "CS", "hf:bert": "NS"}


def passes(cls, pattern, checks):
    cls = subject_class(cls) if isinstance(cls, str) else adapter_of(cls, "module")
    results = verify_attention(cls, pattern, checks=checks and checks.split(), quick=True)
    assert results
    assert {result.check: result.detail for result in results if not result.passed} == {}
    return results


@pytest.mark.parametrize("name", SOUND)
def test_sound_module_passes(name):
    passes(*SOUND[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE_MODELS)
def test_sound_model_of_transformers_passes(name):
    passes(name, WHOLE_MODELS[name], None)


@pytest.mark.parametrize("name", [pytest.param("hf:roformer", marks=pytest.mark.slow), "hf:falcon"])
def test_a_size_that_a_module_refuses_is_skipped_and_named(name):
    [result] = passes(name, subject_class(name).patterns[0], "model_sizes_gradient")
    assert "; skipped: width 21, heads 3" in result.detail


def test_dropout_of_a_whole_layer_is_not_that_of_weights():
    def layer(embed_dim, num_heads, dropout):
        return nn.TransformerEncoderLayer(embed_dim, num_heads, 2 * embed_dim, dropout, batch_first=True)

    assert [result.check for result in passes(layer, "NS", "dropout")] == ["dropout_differs"]


def test_a_wrong_gradient_of_experts_fails():
    cls = variant(Experts, forward=lambda c: c.but(query=0.5 * (c.q + c.q.detach())))
    checks = SOUND["choice of experts"][2].split()
    results = verify_attention(adapter_of(cls, "module"), "CS", checks=checks, quick=True)
    assert [result.passed for result in results] == [False, False]
