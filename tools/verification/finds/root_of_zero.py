"""Gemma 3n: the gradient of a token of zeros is NaN.

The magnitude of the embeddings is `torch.mean(x**2) ** 0.5`, whose derivative at 0 is infinite. Gradients of
`inputs_embeds` are NaN for tokens of zeros, such as padding. The program prints their number. No thread found. Found
by `zero_tokens`.
"""

import torch
from transformers import AutoModel, Gemma3nTextConfig

sizes = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
layers = {"layer_types": ["full_attention"] * 2, "activation_sparsity_pattern": [0.0] * 2, "num_kv_shared_layers": 0}
parts = {"num_key_value_heads": 2, "head_dim": 8, "vocab_size_per_layer_input": 99, "hidden_size_per_layer_input": 8}
model = AutoModel.from_config(Gemma3nTextConfig(**sizes, **layers, **parts, laurel_rank=8))
tokens = torch.randn(1, 5, 32).index_fill(1, torch.tensor([1]), 0.0).requires_grad_()
model(inputs_embeds=tokens).last_hidden_state.sum().backward()
print(tokens.grad.isnan().sum().item())
