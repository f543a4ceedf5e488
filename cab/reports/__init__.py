"""Leaderboard reports: tables, the HTML page and figures made from results."""
