"""Mamba-2, Zamba2, Nemotron-H and others: decoding steps ignore `time_step_limit`.

`mamba2_chunk_scan` clamps the time steps to `time_step_limit`, `mamba2_selective_state_update` does not. Tokens that
are read one by one get other outputs. The mixers of Zamba2 and Nemotron-H have the limits (`time_step_min`, inf), by
default (0.001, inf), so small time steps differ. Those of Mamba-2 are (0, inf). No thread found. Found by
`decode_steps` with open gates.
"""

import torch
from transformers import AutoModelForCausalLM, DynamicCache, Mamba2Config

torch.manual_seed(0)
sizes = {"hidden_size": 32, "num_heads": 8, "head_dim": 8, "n_groups": 1, "num_hidden_layers": 1, "vocab_size": 99}
config = Mamba2Config(**sizes, time_step_limit=(0.1, 0.2), initializer_range=0.3)
model, cache = AutoModelForCausalLM.from_config(config).eval(), DynamicCache(config=config)
tokens = torch.arange(5, 25)[None]
steps = [model(token, cache_params=cache, use_cache=True).logits for token in tokens.split(1, 1)]
print(f"{(torch.cat(steps, 1) - model(tokens).logits).abs().max():.2g}")
