"""The backbones, one module each: networks with attention slots."""
