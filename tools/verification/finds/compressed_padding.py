"""DeepSeek-V4, MiniMax-M3: padding on the left enters the blocks of keys.

The compressor pools blocks of consecutive tokens before the mask is applied. Known and open:
huggingface/transformers#45938. The indexer of MiniMax-M3 also counts padding in its blocks, which a comment in the
source states. Found by `padded_left`.
"""

import torch
from transformers import AutoModelForCausalLM, DeepseekV4Config

torch.manual_seed(0)
layers = {"layer_types": ["compressed_sparse_attention"], "mlp_layer_types": ["moe"], "num_hidden_layers": 1}
sizes = {"hidden_size": 32, "num_attention_heads": 4, "head_dim": 16, "q_lora_rank": 8, "o_groups": 2, "o_lora_rank": 8}
experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "sliding_window": 8}
model = AutoModelForCausalLM.from_config(
    DeepseekV4Config(vocab_size=99, initializer_range=0.3, **layers, **sizes, **experts)
)
prompt = torch.arange(5, 25)[None]
padded, mask = torch.cat([0 * prompt, prompt], 1)[:, 18:], (torch.arange(22) >= 2).long()[None]
left = model.eval()(padded, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits[:, 2:]
print(f"{(left - model(prompt).logits).abs().max():.2g}")
