"""Point Cloud Data files (.pcd), version 0.7, ascii or binary, with fields x y z first."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cab import UserError


def read_pcd(path: Path) -> np.ndarray:
    """Read the points of a file, [N, 3] float32.

    Raises:
        ValueError: with the file: not a .pcd, fields other than x y z, truncated, compressed, or a NaN or infinite
            point, with its line or index.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    header, start, lines = _header(path, content)
    if header.get("FIELDS", "").split() != ["x", "y", "z"] or header.get("SIZE", "").split() != ["4"] * 3:
        raise UserError(
            f"{path}: fields must be x y z of 4 bytes, got '{header.get('FIELDS')}' of {header.get('SIZE')}"
        )
    try:
        count = int(header["POINTS"])
    except (KeyError, ValueError):
        raise UserError(f"{path}: the header does not give the number of POINTS") from None
    if header["DATA"] == "ascii":
        points = _ascii(path, content[start:], count, lines)
    elif header["DATA"] == "binary":
        if len(content) - start < 12 * count:
            raise UserError(f"{path} is truncated: {(len(content) - start) // 12} of {count} points")
        points = np.frombuffer(content, dtype="<f4", count=3 * count, offset=start).reshape(count, 3).copy()
    else:
        raise UserError(f"{path}: DATA {header['DATA']} is not supported; convert it to ascii or binary")
    bad = ~np.isfinite(points).all(axis=1)
    if bad.any():
        number = int(bad.argmax())
        place = f"line {lines + number + 1}" if header["DATA"] == "ascii" else f"point {number + 1}"
        raise UserError(f"{path}, {place}: the point is NaN or infinite: {points[number].tolist()}")
    if not count:
        raise UserError(f"{path} has no points")
    return points


def _header(path: Path, content: bytes) -> tuple[dict[str, str], int, int]:
    """Return the header's entries, the offset of the data, and the number of header lines."""
    header: dict[str, str] = {}
    start = 0
    for number in range(1, 21):
        end = content.find(b"\n", start)
        if end < 0:
            break
        line = content[start:end].decode("ascii", "replace").strip()
        start = end + 1
        if line and not line.startswith("#"):
            name, _, value = line.partition(" ")
            header[name] = value.strip()
            if name == "DATA":
                return header, start, number
    raise UserError(f"{path} is not a .pcd file: no line 'DATA' in its header")


def _ascii(path: Path, content: bytes, count: int, lines: int) -> np.ndarray:
    rows = content.decode("ascii", "replace").split("\n")[:count]
    points = np.empty((count, 3), dtype=np.float32)
    for number, row in enumerate(rows):
        values = row.split()
        try:
            points[number] = [float(value) for value in values]
        except ValueError:
            raise UserError(f"{path}, line {lines + number + 1}: expected three numbers, got '{row[:60]}'") from None
    if len(rows) < count:
        raise UserError(f"{path} is truncated: {len(rows)} of {count} points")
    return points
