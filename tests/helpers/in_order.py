"""Batches as the runner gives them, on the CPU."""

from __future__ import annotations

import torch

from cab.runner.evaluation import DeviceBatches

in_order = DeviceBatches(torch.device("cpu"))
