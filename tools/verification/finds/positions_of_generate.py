"""RoBERTa, XLM-RoBERTa, CamemBERT, X-MOD, Data2Vec text: `generate` counts positions from 0.

A forward pass counts from `padding_idx + 1`, but `generate` passes `position_ids` that start at 0. Generated tokens
follow wrong position embeddings. In the same types, cached calls with `inputs_embeds` restart the positions in every
call, as `create_position_ids_from_inputs_embeds` does not receive the cache length. No thread found. Found by
`decode_steps`.
"""

import torch
from transformers import AutoModelForCausalLM, RobertaConfig

torch.manual_seed(0)
sizes = {"vocab_size": 99, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "num_hidden_layers": 1}
model = AutoModelForCausalLM.from_config(RobertaConfig(**sizes, is_decoder=True, initializer_range=0.3)).eval()
options = {"max_new_tokens": 5, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
result = model.generate(torch.arange(5, 15)[None], **options, eos_token_id=None)
print(f"{(torch.stack(result.logits, 1) - model(result.sequences).logits[:, 9:-1]).abs().max():.2g}")
