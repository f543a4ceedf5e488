"""Mamba, Falcon-Mamba, Jamba, Zamba: a prompt read in pieces loses the state.

If a cached call has several tokens, `MambaMixer.forward` passes no initial state to the scan. Every piece of a prompt
after the first starts from zero. Known limitation of Mamba-1 (huggingface/transformers#47087); Mamba-2 types were
repaired (#46084, #46741). Found by `decode_after_prefill`.
"""

import torch
from transformers import AutoModelForCausalLM, DynamicCache, MambaConfig

torch.manual_seed(0)
config = MambaConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, initializer_range=0.3)
model, cache = AutoModelForCausalLM.from_config(config).eval(), DynamicCache(config=config)
prompt = torch.arange(1, 41)[None]
pieces = [model(piece, cache_params=cache, use_cache=True).logits for piece in prompt.split(20, 1)]
print(f"{(torch.cat(pieces, 1) - model(prompt).logits).abs().max():.2g}")
