"""xLSTM: cached calls fail if the width of all queries is not a multiple of 64.

`xLSTMConfig.qk_head_dim` and `v_head_dim`, the sizes of the cache, round the width up to a multiple of 64. The layers
do not round it. No thread found. Found by `decode_steps`.
"""

import torch
from transformers import xLSTMConfig, xLSTMForCausalLM

config = xLSTMConfig(vocab_size=99, hidden_size=96, num_heads=4, num_hidden_layers=1, return_last_states=True)
try:
    xLSTMForCausalLM(config).eval().generate(torch.arange(5, 15)[None], max_new_tokens=2)
except ValueError as error:
    print(error)
