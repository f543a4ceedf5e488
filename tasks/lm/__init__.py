"""LM: causal language modeling."""
