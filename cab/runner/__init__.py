"""Run one cell: check it, train it, evaluate it, write its record. Knows no task, backbone or attention by name."""
