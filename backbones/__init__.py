"""Backbones, one module each: networks with exchangeable attention layers."""
