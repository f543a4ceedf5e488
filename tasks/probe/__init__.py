"""Synthetic probes: small questions, each of which asks for one thing that an attention may or may not do."""
