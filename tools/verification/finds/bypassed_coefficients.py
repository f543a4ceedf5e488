"""Gemma 3n: adapters and hooks of `correction_coefs` have no effect in training.

In training mode, `Gemma3nTextAltUp.correct` multiplies by the clamped weight and does not call the module. An adapter
that wraps this linear layer receives no gradient, and acts in evaluation alone. The program prints the calls that
training lacks. No thread found. Found by `hooks_act`.
"""

import torch
from transformers import AutoModel, Gemma3nTextConfig

sizes = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
layers = {"layer_types": ["full_attention"] * 2, "activation_sparsity_pattern": [0.0] * 2, "num_kv_shared_layers": 0}
parts = {"num_key_value_heads": 2, "head_dim": 8, "vocab_size_per_layer_input": 99, "hidden_size_per_layer_input": 8}
model, calls = AutoModel.from_config(Gemma3nTextConfig(**sizes, **layers, **parts, laurel_rank=8)), []
model.layers[0].altup.correction_coefs.register_forward_hook(lambda module, *_: calls.append(module.training))
for mode in (True, False):
    model.train(mode)(torch.arange(5, 15)[None])
print(calls.count(False) - calls.count(True))
