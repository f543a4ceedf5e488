"""Recipes of the troubled task, as a package outside this repository brings its own."""
