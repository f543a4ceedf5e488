"""Leaderboards: the table, the page and the figures that are made from results."""
