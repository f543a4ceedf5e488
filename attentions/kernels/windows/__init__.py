"""Attention over windows, tiles, fixed offsets, buckets and sorted chunks."""
