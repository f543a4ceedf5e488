"""Needle: retrieval of facts from a haystack by depth, also at longer lengths than in training."""
