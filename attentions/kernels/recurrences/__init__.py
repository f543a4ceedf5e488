"""Linear recurrences and prefix means, computed in chunks."""
