"""Moshi: the sliding window applies to cached calls alone.

`MoshiModel` builds a full causal mask (`create_causal_mask`), but its cache drops tokens older than `sliding_window`.
Training and one forward pass over more than 3,000 tokens differ from `generate`. No thread found; symptoms in
huggingface/transformers#38725. Found by `decode_steps` and `token_distance`.
"""

import torch
from transformers import MoshiConfig
from transformers.models.moshi.modeling_moshi import MoshiForCausalLM

torch.manual_seed(0)
sizes = {"vocab_size": 99, "hidden_size": 32, "num_attention_heads": 4, "ffn_dim": 64, "num_hidden_layers": 1}
model = MoshiForCausalLM(MoshiConfig(**sizes, sliding_window=8, initializer_range=0.3)).eval()
options = {"max_new_tokens": 5, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
result = model.generate(torch.arange(1, 21)[None], **options, eos_token_id=None)
print(f"{(torch.stack(result.logits, 1) - model(result.sequences).logits[:, 19:-1]).abs().max():.2g}")
