"""LFM2, Mamba, Mamba-2, Granite hybrid, Kimi Linear, Qwen3.5: padding at the end of a prompt enters the state.

The cached state of a convolution is taken from the last positions of the padded prompt, and a decay continues over
the padding. Tokens that follow a prompt padded on the right are wrong. Known: huggingface/transformers#48256, which
names the Mamba-2 types. Found by `decode_padded_right`.
"""

import torch
from transformers import AutoModelForCausalLM, DynamicCache, Lfm2Config

torch.manual_seed(0)
sizes = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
config = Lfm2Config(**sizes, layer_types=["conv", "full_attention"], num_hidden_layers=2, initializer_range=0.3)
model, cache = AutoModelForCausalLM.from_config(config).eval(), DynamicCache(config=config)
prompt, token, mask = torch.arange(1, 11)[None], torch.tensor([[50]]), torch.ones(1, 11).long()
model(torch.cat([prompt, 0 * prompt], 1), attention_mask=torch.cat([mask[:, 1:], 0 * prompt], 1), past_key_values=cache)
mask = torch.cat([mask[:, 1:], 0 * prompt, mask[:, :1]], 1)
padded = model(token, attention_mask=mask, position_ids=0 * token + 10, past_key_values=cache).logits
print(f"{(padded - model(torch.cat([prompt, token], 1)).logits[:, -1:]).abs().max():.2g}")
