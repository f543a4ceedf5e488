"""Training loops of other frameworks, which run the cells of the benchmark beside our own."""
