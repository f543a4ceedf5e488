"""The networks of speech: phonemes brought to the size of the sinusoids that are added to them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cab import build_backbone

SIZES = {"num_tokens": 19, "num_mels": 3, "embed_dim": 16, "num_heads": 2, "ffn_dim": 24}
SIZES |= {"encoder_layers": 1, "decoder_layers": 1}
BACKBONES: dict[str, dict[str, Any]] = {"fastspeech2": {}, "transformer_tts": {"prenet_dim": 8, "encoder_convs": 0}}


@pytest.mark.parametrize("name", BACKBONES)
def test_scaled_phonemes_are_those_of_embeddings_sqrt_of_the_width_larger(name: str) -> None:
    networks = {}
    for scaled in (False, True):
        networks[scaled] = build_backbone(
            name, attention="vanilla", pattern="NS", scale_embedding=scaled, **SIZES, **BACKBONES[name]
        ).eval()
    networks[True].load_state_dict(networks[False].state_dict())
    tokens = torch.randint(0, 19, (2, 7))

    def encoded(network: Any) -> torch.Tensor:
        if name == "transformer_tts":
            return network.encode(tokens)
        return network(tokens, durations=torch.ones_like(tokens), pitch=torch.zeros(2, 7), energy=torch.zeros(2, 7)).mel

    plain, scaled = encoded(networks[False]), encoded(networks[True])
    with torch.no_grad():
        networks[False].embedding.weight.mul_(16**0.5)
    assert not torch.allclose(plain, scaled, atol=1e-2)
    torch.testing.assert_close(encoded(networks[False]), scaled)
