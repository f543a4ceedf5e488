"""Published data sets: files below the data root, and their lines, texts and images."""

from __future__ import annotations

import codecs
import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cab import UserError
from cab.files.cache import check_unchanged, read_bytes
from cab.files.disk import user_path


def find_data(name: str, data_root: Path | None, *files: str, instead: str = "dataset=synthetic") -> Path:
    """Return the first of ``files`` (files or folders) in the folders of a published data set.

    Args:
        name: name of the data set, whose folders are in ``configs/data``.
        files: alternative relative paths.
        instead: setting that needs no files, for the error message.
    """
    from cab.data.sources import data_set, fetch_hint  # generated data need none

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


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line of a UTF-8 file; UserError with file and line for other bytes.

    Lines end with a line feed, or CRLF: texts contain other characters that Python treats as line ends.
    """
    content = hashlib.sha256()
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            content.update(line)
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise UserError(f"{path}, line {number}: byte {error.start} is not UTF-8 text") from None
            _refuse_nul(path, text, number)
            if number == 1 and "\r" in text and not text.endswith("\n"):
                raise UserError(f"{path}, line 1: lines end with carriage returns; convert them to line feeds")
            yield number, text.removesuffix("\n").removesuffix("\r")
    check_unchanged(path, content)


def read_text(path: Path) -> str:
    """Return a text in UTF-8, or in UTF-16 with a byte order mark, with line feeds; UserError with file and line."""
    content = read_bytes(path)
    is_wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if is_wide else "utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: byte {error.start} is not UTF-8 text") from None
    _refuse_nul(path, text, 1)
    return text if "\n" in text else text.replace("\r", "\n")


def read_number(text: str) -> float:
    """Return a number as files have it; ValueError for one that only Python reads, such as ``1_000``."""
    if "_" in text or not text.isascii():
        raise ValueError(f"not a number: '{text:.40}'")
    return float(text)


def _refuse_nul(path: Path, text: str, line: int) -> None:
    if "\0" in text:
        line += text.count("\n", 0, text.index("\0"))
        raise UserError(f"{path}, line {line}: a NUL character; the file is not UTF-8 text, or is damaged")


def read_image(path: Path, mode: str) -> np.ndarray:
    """Read an image as uint8, upright, [H, W, 3] for mode RGB and [H, W] for mode L; UserError with the file otherwise.

    The orientation that a camera has noted is applied.
    """
    from PIL import Image, ImageOps  # an optional package

    try:
        with Image.open(io.BytesIO(read_bytes(path))) as image:
            image.load()
            if (count := getattr(image, "n_frames", 1)) > 1:
                raise UserError(f"{path} has {count} frames; save one of them")
            if image.mode != mode:
                raise UserError(f"{path} has mode {image.mode}, not {mode}: convert it")
            return np.asarray(ImageOps.exif_transpose(image))
    except UserError:
        raise
    except Exception as error:  # of a decoder
        raise UserError(f"{path} is not an image that can be read ({type(error).__name__})") from None


def find_file(option: str, value: str, folder: Path) -> Path:
    """Return the file that an option names: absolute, with ``~``, below ``folder``, or below the working directory."""
    path = user_path(value)
    places = [path] if path.is_absolute() else [folder / path, Path.cwd() / path]
    for place in places:
        if place.is_file():
            return place
    raise UserError(f"{option}={value}: no file {' or '.join(map(str, places))}")
