"""GIT: `inputs_embeds` are changed in place.

`GitEmbeddings.forward` adds the positions with `embeddings += position_embeddings`. A second call with the same
tensor gives other outputs, and a tensor that requires a gradient raises an error. No thread found. Found by
`inputs_untouched`.
"""

import torch
from transformers import AutoModel, GitConfig

torch.manual_seed(0)
sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 32, "num_hidden_layers": 1}
config = GitConfig(**sizes, vocab_size=99, vision_config={**sizes, "image_size": 32})
model = AutoModel.from_config(config).eval()
tokens = torch.randn(1, 5, 32)
before = tokens.clone()
model(inputs_embeds=tokens)
print(f"{(tokens - before).abs().max():.2g}")
