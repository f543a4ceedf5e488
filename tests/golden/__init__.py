"""Stored identities, outputs, state dicts and checksums: what a change of structure must not change."""
