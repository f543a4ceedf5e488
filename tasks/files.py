"""Files of published data sets below the data root."""

from __future__ import annotations

from pathlib import Path

from cab import UserError
from cab.data.sources import data_set, fetch_hint


def find_data(name: str, data_root: Path | None, *files: str, instead: str = "dataset=synthetic") -> Path:
    """Return the first of ``files`` (files or folders) in the folders of a published data set.

    Args:
        name: name of the data set, whose folders are in ``configs/data``.
        data_root: the folder that contains them.
        files: alternative relative paths.
        instead: setting that needs no files, for the error message.

    Raises:
        UserError: there is none; the message contains the command that downloads the data set.
    """
    folders = data_set(name).folders
    if data_root is None:
        raise UserError(
            f"dataset '{name}' needs its files: {fetch_hint(name, None)}; point data_root (or CAB_DATA) at a folder "
            f"with {folders[0]}/{files[0]}, or use {instead}"
        )
    for folder in folders:
        for file in files:
            if (data_root / folder / file).exists():
                return data_root / folder / file
    raise UserError(
        f"no {' or '.join(files)} in {', '.join(folders)} of {data_root}: {fetch_hint(name, data_root)}; "
        f"check data_root, or use {instead}"
    )
