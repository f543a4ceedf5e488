"""Published data sets: files below the data root, their lines, texts and images, and what nothing reads or repeats."""

from __future__ import annotations

import codecs
import hashlib
import io
import logging
import os
import re
import struct
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from cab import UserError
from cab.files.cache import check_unchanged, read_bytes
from cab.files.disk import listed, user_path
from cab.files.text_table import counted

log = logging.getLogger(__name__)

SPLITS = ("train", "validation", "test")
VAL_SPLITS = ("train", "val", "test")
"""Splits of data sets whose authors name the second one ``val``."""
COMPANIONS = re.compile(
    r"(?i)\.|~|readme|license|copying|checksums?|metadata\.csv|dataset_infos\.json|cab-data-"
    r"|.*\.(md|pdf|html|bib|lock|sha256)$"
)
"""Files that come with data and are no part of them."""


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
    found = f"no {' or '.join(files)} in {', '.join(folders)} of {data_root}"
    if not data_root.is_dir():
        found = f"the folder data_root={data_root} does not exist"
    raise UserError(f"{found}: {fetch_hint(name, data_root)}; check data_root, or use {instead}")


def warn_of_left_out(folder: Path, used: Collection[Path], pattern: str = "") -> None:
    """Warn once of the files below a folder that are not used, without :data:`COMPANIONS` and hidden folders.

    Args:
        pattern: regular expression of the names that can be data; default: all.
    """
    known, place = {os.path.abspath(path) for path in used}, os.path.abspath(folder)  # noqa: PTH100
    others = []
    for inner, folders, names in os.walk(place):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files = [name for name in names if not COMPANIONS.match(name) and re.search(pattern, name)]
        others += [path for name in sorted(files) if (path := f"{inner}/{name}") not in known]
    if others:
        log.warning("%s: left out %s", folder, listed(path.removeprefix(f"{place}/") for path in others))


def warn_of_repeats(kind: str, splits: Mapping[str, Iterable[tuple[Hashable, str]]]) -> None:
    """Warn once of items with the same content, in one split or in several.

    Args:
        kind: such as ``books``.
        splits: the content, or its checksum, and the place of each item.
    """
    first: dict[Hashable, tuple[str, str]] = {}
    again, across = list[str](), 0
    for split, items in splits.items():
        for content, place in items:
            of_split, earlier = first.setdefault(content, (split, place))
            if earlier != place or of_split != split:
                again.append(f"{place} is {earlier}")
                across += of_split != split
    if again:
        words = f", {across:,} of them in another split" if across else ""
        log.warning("%s %s occur more than once%s: %s", f"{len(again):,}", kind, words, listed(again))


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
    text = decode_text(path, content, "utf-16" if is_wide else "utf-8-sig").replace("\r\n", "\n")
    return text if "\n" in text else text.replace("\r", "\n")


def decode_text(path: Path, content: bytes, encoding: str = "utf-8") -> str:
    """Return the text of a file; UserError with file and line for other bytes or a NUL character."""
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: byte {error.start} is not UTF-8 text") from None
    _refuse_nul(path, text, 1)
    return text


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

    content = read_bytes(path)
    try:
        with Image.open(io.BytesIO(content)) as image:
            image.load()
            if (size := _size_of_image(image.format, content)) != len(content):
                raise UserError(f"{path} has {counted(len(content), 'byte')}, and its image {size:,}: save it again")
            if (count := getattr(image, "n_frames", 1)) > 1:
                raise UserError(f"{path} has {count} frames; save one of them")
            if image.mode != mode:
                raise UserError(f"{path} has mode {image.mode}, not {mode}: convert it")
            return np.asarray(ImageOps.exif_transpose(image))
    except UserError:
        raise
    except Exception as error:  # of a decoder
        raise UserError(
            f"{path} is not an image that can be read ({type(error).__name__}); replace or remove it"
        ) from None


def _size_of_image(form: str | None, content: bytes) -> int:
    """Return the number of bytes that the image in a file has by its own account, without zeros at the end."""
    ends = {"PNG": b"IEND\xae\x42\x60\x82", "JPEG": b"\xff\xd9"}
    if form in ends:
        size = content.rfind(ends[form]) + len(ends[form])
    elif form in ("BMP", "WEBP"):
        size = struct.unpack_from("<I", content, 2 if form == "BMP" else 4)[0] + (0 if form == "BMP" else 8)
    else:
        return len(content)
    return len(content) if not content[size:].strip(b"\0") and size <= len(content) else size


def find_file(option: str, value: str, folder: Path) -> Path:
    """Return the file that an option names: absolute, with ``~``, below ``folder``, or below the working directory."""
    path = user_path(value)
    places = [path] if path.is_absolute() else [folder / path, Path.cwd() / path]
    for place in places:
        if place.is_file():
            return place
    raise UserError(f"{option}={value}: no file {' or '.join(map(str, places))}")
