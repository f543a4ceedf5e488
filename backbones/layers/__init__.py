"""Layers shared by several backbones."""
