"""Stored identities, outputs and checksums: what a change of structure must not change."""
