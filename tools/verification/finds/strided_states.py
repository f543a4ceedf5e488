"""OLMoE, Mixtral, MiniMax-M2 and others with experts: an error for strided inputs.

The block with experts calls `hidden_states.view(-1, hidden_dim)`, which needs `reshape` if the batch is not the first
dimension in memory. The call raises an error; numbers are not affected. No thread found. Found by `strided_inputs`.
"""

import torch
from transformers import AutoModel, OlmoeConfig

sizes = {"vocab_size": 99, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "num_hidden_layers": 1}
model = AutoModel.from_config(OlmoeConfig(**sizes, num_experts=4, num_experts_per_tok=2)).eval()
try:
    model(inputs_embeds=torch.randn(7, 2, 32).transpose(0, 1))
except RuntimeError as error:
    print(error)
