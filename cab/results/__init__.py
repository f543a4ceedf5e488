"""From records to scores: K of the suite, the compositional index of the paper, and analyses. Does not import torch."""
