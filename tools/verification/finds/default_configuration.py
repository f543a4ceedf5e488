"""Cohere Compass text, DBRX, Emu3: the default configuration cannot be built.

Cohere Compass stores an empty dict as `rope_parameters`, and the rotary embedding raises a `KeyError` for the type of
the layers. `DbrxAttention` reads `rope_theta`, which `DbrxAttentionConfig` lacks; the example in the documentation of
`DbrxConfig` fails. `Emu3Model` needs a `vocabulary_map`, which has no default. No thread found.
"""

from transformers import AutoConfig, AutoModel

sizes = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4}
types = {"cohere_compass_text": {**sizes, "num_key_value_heads": 2}, "dbrx": {"d_model": 32, "n_layers": 1}}
for name, fields in types.items():
    try:
        AutoModel.from_config(AutoConfig.for_model(name, **fields))
    except (AttributeError, KeyError) as error:
        print(error)
