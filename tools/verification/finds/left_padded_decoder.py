"""BART, BlenderbotSmall, Pegasus as decoders: padding on the left moves positions.

The decoder computes positions from the number of tokens, padding included, and accepts no `position_ids`. `generate`
with a batch of prompts of unequal lengths returns other tokens than each prompt alone. Known:
huggingface/transformers#19581, closed with a note in the documentation (#20068). Found by `padded_left`.
"""

import torch
from transformers import AutoModelForCausalLM, BartConfig

torch.manual_seed(0)
sizes = {"vocab_size": 99, "d_model": 32, "decoder_attention_heads": 4, "decoder_ffn_dim": 64, "encoder_layers": 2}
config = BartConfig(**sizes, decoder_layers=2, is_decoder=True, is_encoder_decoder=False, init_std=0.3)
model, prompt = AutoModelForCausalLM.from_config(config).eval(), torch.arange(5, 15)[None]
options = {"max_new_tokens": 1, "output_logits": True, "return_dict_in_generate": True, "do_sample": False}
padded, mask = torch.cat([0 * prompt + 1, prompt], 1), torch.cat([0 * prompt, 0 * prompt + 1], 1)
left = model.generate(padded, attention_mask=mask, **options).logits[0]
print(f"{(left - model.generate(prompt, **options).logits[0]).abs().max():.2g}")
