"""The tables of the CAB paper, compared with measurements and recomputed from each other."""
