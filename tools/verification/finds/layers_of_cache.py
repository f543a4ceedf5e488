"""BART, mBART, Pegasus, Marian as decoders: an error if the decoder has more layers than the encoder.

`DynamicCache(config=config)` creates `config.num_hidden_layers` layers, which is `encoder_layers` in these types. No
thread found.
"""

import torch
from transformers import AutoModelForCausalLM, BartConfig

sizes = {"vocab_size": 99, "d_model": 32, "decoder_attention_heads": 4, "decoder_ffn_dim": 64, "encoder_layers": 1}
config = BartConfig(**sizes, decoder_layers=2, is_decoder=True, is_encoder_decoder=False)
try:
    AutoModelForCausalLM.from_config(config).generate(torch.arange(5, 15)[None], max_new_tokens=1)
except IndexError as error:
    print(error)
