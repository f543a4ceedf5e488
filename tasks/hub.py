"""Data sets on the Hugging Face hub, streamed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cab import UserError


def stream(name: str, splits: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rows of each split, by part, and what identifies their content.

    Args:
        name: of the data set, as ``deepmind/pg19``; a data set of files, not of a script.
        splits: the hub's split of each of our parts.

    Raises:
        ValueError: it cannot be reached, does not exist, or is of a kind that is not read any more.
    """
    from datasets import load_dataset

    try:
        parts = {part: load_dataset(name, split=split, streaming=True) for part, split in splits.items()}
    except Exception as error:  # the library raises many kinds, of which most are the network's
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"cannot read data set '{name}' from the hub: {reason}") from None
    sums = {part: repr(rows.info.download_checksums) for part, rows in parts.items()}
    return parts, {"hub": name, "checksums": sums}
