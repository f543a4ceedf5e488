"""Operators that attentions are made of, each named for what it computes."""
