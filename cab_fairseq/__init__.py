"""CAB's attentions in fairseq: ``fairseq-train DATA --user-dir cab_fairseq --arch cab_gpt2 --attention abc``.

Runs in the environment that `make fairseq` builds; nothing else in the project imports it.
"""

from __future__ import annotations

import argparse

import torch

from cab_fairseq import models, schedule

# fairseq stores a RoBERTa's arguments in its checkpoints as a Namespace, and reads them with torch's safe loader.
torch.serialization.add_safe_globals([argparse.Namespace])

__all__ = ["models", "schedule"]
