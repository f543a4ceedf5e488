"""Efficiency benchmark: time and memory of attentions by sequence length, under the default or the paper's protocol."""
