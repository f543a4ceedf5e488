"""Streaming of data sets from the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cab import UserError


def stream(name: str, splits: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the rows of each part, and an identifier of their content.

    Args:
        name: name of the data set, such as ``deepmind/pg19``; it must consist of files, not of a script.
        splits: the Hub's split for each part.

    Raises:
        ValueError: the data set cannot be reached, does not exist, or has an unsupported format.
    """
    from datasets import load_dataset

    try:
        parts = {part: load_dataset(name, split=split, streaming=True) for part, split in splits.items()}
    except Exception as error:  # the library raises many kinds of exceptions, mostly network errors
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"cannot read data set '{name}' from the hub: {reason}") from None
    sums = {part: repr(rows.info.download_checksums) for part, rows in parts.items()}
    return parts, {"hub": name, "checksums": sums}
