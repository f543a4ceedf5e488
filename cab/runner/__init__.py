"""Run cells: check, train and evaluate each, and write its record."""
