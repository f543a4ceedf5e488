"""Synthetic probes: small questions, each of which tests one capability of an attention."""
