"""Sizes of the layers whose cost the leaderboard shows: `cab efficiency` measures them, and tables read them."""

LENGTH = 8192
"""Number of tokens."""
FALLBACK = 2048
"""Length of the measurements of an attention that takes too long, or too much memory, at :data:`LENGTH` tokens."""
EARLY = 256
"""Number of tokens after which the decode state is measured as well, to see whether it grows."""
BOARD_SIZES = {"forward": {"embed_dim": 256, "num_heads": 4}, "decode": {"embed_dim": 512, "num_heads": 8}}
"""Width and heads by phase."""
