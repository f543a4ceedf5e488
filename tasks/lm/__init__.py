"""LM: causal language modelling."""
