"""Cohere Compass text: the default configuration cannot be built.

Without `rope_parameters`, the configuration stores an empty dict, and the rotary embedding raises a `KeyError` for the
type of the layers. No thread found.
"""

from transformers import AutoConfig, AutoModel

sizes = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4}
try:
    AutoModel.from_config(AutoConfig.for_model("cohere_compass_text", **sizes, num_key_value_heads=2, head_dim=8))
except KeyError as error:
    print(error)
