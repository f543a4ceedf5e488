"""Scoring: the compositional index and the analyses in the paper that are based on it. Does not import torch."""
