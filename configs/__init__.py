"""Hydra's configuration: presets, recipes of the tasks, sizes of the backbones."""
