"""Seed and size of the hostile experiments: always the same in a commit's tests, others each night."""

from __future__ import annotations

import os

SEED = os.environ["CAB_CONFORMANCE_SEED"]
SCALE = int(os.environ.get("CAB_HOSTILE_SCALE", "1"))
"""Factor of the number of drawn experiments."""
