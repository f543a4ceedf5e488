"""Precision, checkpointing, custom operators and layers that several kernels use."""
