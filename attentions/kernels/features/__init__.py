"""Feature maps and sums over keys."""
