"""Attention on gathered blocks, landmarks and latents."""
