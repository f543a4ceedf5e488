"""Bamba: positions restart at 0 in every cached call.

Without `position_ids`, `BambaModel.forward` counts positions from 0 and ignores the length of the cache. `generate`
passes them; in other callers, rotary embeddings are wrong. No thread found. Found by `decode_steps`.
"""

import torch
from transformers import AutoModelForCausalLM, BambaConfig, DynamicCache

torch.manual_seed(0)
sizes = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "mamba_n_heads": 4}
state = {
    "num_key_value_heads": 2,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "attn_layer_indices": [1],
}
config = BambaConfig(**sizes, **state, num_hidden_layers=2, initializer_range=0.3)
model, cache, tokens = AutoModelForCausalLM.from_config(config).eval(), DynamicCache(config=config), torch.arange(5, 15)
steps = [model(token[None], past_key_values=cache, use_cache=True).logits for token in tokens[:, None]]
print(f"{(torch.cat(steps, 1) - model(tokens[None]).logits).abs().max():.2g}")
