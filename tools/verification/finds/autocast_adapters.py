"""X-MOD: an error under autocast.

`lang_adapter` writes the outputs of an adapter, which are in 16 bits under `torch.autocast`, into a tensor of float32.
Training with `bf16=True` or `fp16=True` fails. No thread found; the same operation was repaired in KOSMOS-2
(huggingface/transformers#47691). Found by `autocast_output`.
"""

import torch
from transformers import AutoModel, XmodConfig

sizes = {"vocab_size": 99, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "num_hidden_layers": 1}
model = AutoModel.from_config(XmodConfig(**sizes, default_language="en_XX"))
try:
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.arange(5, 15)[None])
except RuntimeError as error:
    print(error)
