"""One short visit to a machine with a GPU: everything that this project says of GPUs, in parts, each with a time limit.

The same code runs on a CPU, shortened, so that nothing is tried for the first time when a GPU is at hand.
"""
