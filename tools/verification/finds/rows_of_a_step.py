"""RWKV: `generate` with several prompts mixes their states.

In a cached call with one token, the last token of each sequence, [batch, width], is added to the new ones, [batch, 1,
width]. The sum is [batch, batch, width], and `generate` continues with wrong rows. A single prompt is not affected. No
thread found. Found by `decode_steps` and `output_type`.
"""

import torch
from transformers import RwkvConfig, RwkvForCausalLM

torch.manual_seed(0)
model = RwkvForCausalLM(RwkvConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2)).eval()
options = {"max_new_tokens": 3, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
prompts = torch.arange(5, 25).view(2, 10)
both = torch.stack(model.generate(prompts, **options, eos_token_id=None).logits, 1)
alone = torch.stack(model.generate(prompts[:1], **options, eos_token_id=None).logits, 1)
print(f"{(both[:1] - alone).abs().max():.2g}")
