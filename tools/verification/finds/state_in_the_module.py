"""RecurrentGemma: the state of decoding is an attribute of the module.

`conv1d_state` and `recurrent_states` belong to the layers, not to the cache. In `generate`, a prompt of one token
continues the convolution of the previous sequence. Two sequences cannot be decoded in turn, a prompt in pieces loses
the state of the convolution, and beam search does not reorder it. No thread found. Found by `eval_repeatable` and
`modules_apart`.
"""

import torch
from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

torch.manual_seed(0)
sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 64}
config = RecurrentGemmaConfig(**sizes, vocab_size=99, num_hidden_layers=2, block_types=["recurrent", "attention"])
model = RecurrentGemmaForCausalLM(config).eval()
model.model.layers[0].temporal_block.conv_1d.weight.data.normal_()
options = {"max_new_tokens": 1, "output_logits": True, "return_dict_in_generate": True, "eos_token_id": None}
first, second = (model.generate(torch.tensor([[5]]), **options).logits[0] for _ in range(2))
print(f"{(first - second).abs().max():.2g}")
