"""Training loops that run the cells of the benchmark: our own in PyTorch, and fairseq's."""
