"""The tables of the CAB paper, recomputed from each other and compared with this implementation."""
