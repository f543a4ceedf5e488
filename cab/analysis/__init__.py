"""Analyses of a network's attentions: distribution of their weights, and gradients of their scores."""
