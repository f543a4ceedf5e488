"""MusicGen, MusicGen Melody: all `inputs_embeds` have one position.

`MusicgenDecoder.forward` passes `inputs_embeds[:, :, -1:]` to the position embedding, which takes the length from the
last dimension. So every token of a call has the same position. `input_ids` are not affected. No thread found. Found by
`decode_steps`.
"""

import torch
from transformers import MusicgenDecoderConfig, MusicgenForCausalLM

torch.manual_seed(0)
sizes = {"vocab_size": 99, "hidden_size": 32, "num_attention_heads": 4, "ffn_dim": 64, "num_hidden_layers": 1}
config = MusicgenDecoderConfig(**sizes, num_codebooks=1, initializer_factor=0.3, pad_token_id=0, bos_token_id=0)
model, tokens = MusicgenForCausalLM(config).eval(), torch.arange(5, 15)[None]
embedded = model.get_input_embeddings()[0](tokens)
print(f"{(model(inputs_embeds=embedded).logits - model(tokens).logits).abs().max():.2g}")
