"""Registered attentions as layers of flash-linear-attention, and inside models of transformers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cab import FlaLayer, UserError, use_in_transformers

LENGTH, PADDING, NEW = 9, 4, 12
WINDOW = {"window_size": 3}
IDS = torch.randint(3, 50, (2, LENGTH), generator=torch.Generator().manual_seed(1))


class Cache:
    """The part of fla's cache that layers use: a recurrent state per layer."""

    def __init__(self) -> None:
        self.layers: list[dict[str, Any]] = []
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, layer_idx: int) -> dict[str, Any]:
        return self.layers[layer_idx]

    def update(self, *, recurrent_state: tuple[Any, ...], layer_idx: int, offset: int) -> None:
        if layer_idx == len(self.layers):
            self.layers.append({})
        self.layers[layer_idx] = {"recurrent_state": recurrent_state}
        self.num_tokens += offset if layer_idx == 0 else 0


def layer(name: str, index: int = 0, **options: Any) -> FlaLayer:
    torch.manual_seed(index)
    return FlaLayer(name, hidden_size=32, num_heads=2, layer_idx=index, **options).eval()


def through(layers: list[FlaLayer], x: Tensor, mask: Tensor, cache: Cache | None = None) -> Tensor:
    read = {"attention_mask": mask, "past_key_values": cache, "use_cache": cache is not None}
    for mixer in layers:
        output, weights, returned = mixer(hidden_states=x, **read, output_attentions=False)
        assert weights is None
        assert returned is cache
        x = nn.functional.layer_norm(output, (32,))
    return x


def padded(length: int) -> Tensor:
    """The mask of two sequences, of which the first has padding before it."""
    mask = torch.ones(2, length, dtype=torch.long)
    mask[0, :PADDING] = 0
    return mask


@pytest.mark.parametrize(("name", "options"), [("gla", {}), ("vanilla", {}), ("local", WINDOW), ("abc", {})])
@torch.no_grad()
def test_steps_after_a_padded_prompt_give_what_all_tokens_give(name, options):
    layers, cache = [layer(name, index, **options) for index in range(2)], Cache()
    x, mask = torch.randn(2, LENGTH + NEW, 32), padded(LENGTH + NEW)
    whole = through(layers, x, mask)
    steps = [through(layers, x[:, :LENGTH], mask[:, :LENGTH], cache)]
    for end in range(LENGTH + 1, LENGTH + NEW + 1):
        steps.append(through(layers, x[:, cache.num_tokens : end], mask[:, :end], cache))
    torch.testing.assert_close(torch.cat(steps, dim=1)[mask.bool()], whole[mask.bool()], rtol=1e-4, atol=1e-4)
    alone = through(layers, x[:1, PADDING:], mask[:1, PADDING:])
    torch.testing.assert_close(whole[:1, PADDING:], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("caches", [False, True], ids=["whole", "cached"])
@torch.no_grad()
def test_packed_sequences_give_what_each_gives_alone(caches):
    mixer, cache = layer("gla"), Cache() if caches else None
    sequences = torch.randn(8, 32).split([5, 3])
    x, starts = torch.cat(sequences)[None], torch.tensor([0, 5, 8])
    packed, _, _ = mixer(x, cu_seqlens=starts, past_key_values=cache, use_cache=caches)
    alone = torch.cat([mixer(sequence[None])[0] for sequence in sequences], dim=1)
    torch.testing.assert_close(packed, alone)
    if caches:
        tokens = torch.randn(2, 1, 32)
        following = mixer(tokens, past_key_values=cache)[0]
        expected = mixer(torch.cat([sequences[1], tokens[1]])[None])[0][:, -1]
        torch.testing.assert_close(following[1], expected)


@torch.no_grad()
def test_without_use_cache_the_cache_is_read_and_not_changed():
    mixer, cache, x = layer("gla"), Cache(), torch.randn(1, 6, 32)
    mixer(x[:, :4], past_key_values=cache, use_cache=True)
    first, again = (mixer(x[:, 4:], past_key_values=cache, use_cache=False)[0] for _ in range(2))
    assert torch.equal(first, again)
    torch.testing.assert_close(first, mixer(x)[0][:, 4:])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attention_mask": torch.ones(2, 1, 5, 5)}, r"attention_mask must have the shape \[B, L\]"),
        ({"attention_mask": torch.ones(2, 4)}, "L at least 5"),
        ({"cu_seqlens": torch.tensor([0, 5])}, r"\[1, T, D\], got \(2, 5, 32\)"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(given, message):
    with pytest.raises(UserError, match=message):
        layer("linear")(torch.randn(2, 5, 32), **given)


def model(attention: str) -> nn.Module:
    """A tiny Llama with grouped keys; its weights do not depend on the attention."""
    from transformers import LlamaConfig, LlamaForCausalLM  # takes seconds

    sizes = {"vocab_size": 50, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(**sizes, **heads, pad_token_id=0, bos_token_id=1, eos_token_id=None)
    built = LlamaForCausalLM._from_config(config, attn_implementation=attention).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=0.3, generator=generator)
    return built


@pytest.mark.parametrize(("name", "options"), [("linear", {}), ("local", WINDOW), ("flash", {}), ("abc", {})])
def test_a_model_of_transformers_generates_the_same_with_and_without_cache(name, options):
    built, greedy = model(use_in_transformers(name, **options)), {"max_new_tokens": NEW, "do_sample": False}
    cached, whole = (built.generate(IDS, attention_mask=padded(LENGTH), **greedy, use_cache=u) for u in (True, False))
    alone = built.generate(IDS[:1, PADDING:], **greedy)
    assert torch.equal(cached, whole)
    assert torch.equal(cached[0, PADDING:], alone[0])
    assert len(set(cached[:, LENGTH:].flatten().tolist())) > 1


def test_vanilla_is_the_attention_of_transformers():
    mask, attentions = padded(LENGTH), (use_in_transformers("vanilla"), "sdpa")
    with torch.no_grad():
        ours, theirs = (model(name)(IDS, attention_mask=mask).logits[mask.bool()] for name in attentions)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_gradients_reach_the_model():
    built = model(use_in_transformers("linear")).train()
    built(IDS).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in built.parameters())


@pytest.mark.parametrize(
    ("name", "reason"),
    [("gla", "computes more than queries, keys and values"), ("flowformer", "depends on earlier queries")],
)
def test_attentions_that_need_more_than_heads_are_refused(name, reason):
    with pytest.raises(UserError, match=reason):
        use_in_transformers(name)
