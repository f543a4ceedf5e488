"""Needles: facts in a haystack, asked for by depth and at longer lengths than were learnt."""
