"""Hostile archives, lists and hosts, made anew in each test; nothing of them is on the network."""

from __future__ import annotations

import io
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator

GOOD = {"wavs/1.wav": b"wave" * 500, "metadata.csv": b"LJ001|1|one\n"}


def zip_of(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file.getvalue()


def tar_of(files: dict[str, bytes], kind: str = "w:gz", form: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=kind, format=form) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()


def _patched(content: bytes, offsets: tuple[int, int], value: int) -> bytes:
    """A ZIP archive with a 16-bit field of each local and central header replaced."""
    changed = bytearray(content)
    for signature, offset in zip((b"PK\x03\x04", b"PK\x01\x02"), offsets, strict=True):
        start = changed.find(signature)
        while start >= 0:
            struct.pack_into("<H", changed, start + offset, value)
            start = changed.find(signature, start + 4)
    return bytes(changed)


def with_pax(name: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        entry = tarfile.TarInfo("x")
        entry.pax_headers = {"path": name}
        archive.addfile(entry)
    return file.getvalue()


def long_chain(count: int) -> bytes:
    """A tar archive whose first file has so many long names in a row."""
    file = io.BytesIO()
    for _ in range(count):
        entry = tarfile.TarInfo("././@LongLink")
        entry.type, entry.size = tarfile.GNUTYPE_LONGNAME, 5
        file.write(entry.tobuf(tarfile.GNU_FORMAT) + b"name\0".ljust(512, b"\0"))
    return file.getvalue() + tar_of({"a": b"1"}, "w", tarfile.GNU_FORMAT)


ARCHIVES: dict[str, Callable[[], bytes]] = {
    "encrypted": lambda: _patched(zip_of(GOOD), (6, 8), 1),
    "unknown method": lambda: _patched(zip_of(GOOD), (8, 10), 97),
    "over-long name": lambda: zip_of({**GOOD, "n" * 300: b"x"}),
    "over-long name in tar": lambda: tar_of({**GOOD, "n" * 300: b"x"}),
    "over-long path": lambda: zip_of({**GOOD, "/".join(["n" * 200] * 10): b"x"}),
    "NUL in a name": lambda: zip_of({**GOOD, "aXb.txt": b"x"}).replace(b"aXb.txt", b"a\0b.txt"),
    "NUL in a name of tar": lambda: with_pax("a\0b"),
    "line break in a name": lambda: tar_of({**GOOD, "a\nb": b"x"}),
    "nested folders": lambda: zip_of({**GOOD, "/".join("d" * 1500): b"x"}),
    "nested folders in tar": lambda: tar_of({**GOOD, "/".join("d" * 1500): b"x"}),
    "invalid Unicode": lambda: tar_of({**GOOD, "\udce4": b"x"}, "w", tarfile.GNU_FORMAT),
    "own record": lambda: zip_of({**GOOD, "cab-data-ljspeech.json": b"{}"}),
    "own record in a folder": lambda: tar_of({**GOOD, "wavs/cab-data-ljspeech.json": b"{}"}),
    "own partial downloads": lambda: zip_of({**GOOD, ".cab-data-ljspeech/x": b"{}"}),
    "a file that is a folder": lambda: zip_of({**GOOD, "metadata.csv/x": b"x"}),
    "bomb": lambda: zip_of({**GOOD, "zeros": bytes(80 << 20)}),
    "bomb in tar": lambda: tar_of({**GOOD, "zeros": bytes(80 << 20)}),
    "chain of long names": lambda: long_chain(2000),
    "negative size": lambda: tar_of(GOOD, "w", tarfile.GNU_FORMAT).replace(b"00000003720\0", b"\xff" * 12, 1),
    "offset outside": lambda: zip_of(GOOD)[:-6] + struct.pack("<IH", 2**31, 0),
    "nothing": lambda: b"",
    "text": lambda: b"no archive at all",
}


LARGE = ("bomb", "bomb in tar", "chain of long names")
"""Archives that take long to read."""


def damaged(random_numbers: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield archives without end: hostile ones, then each with some bytes changed, removed or repeated."""
    whole = [zip_of(GOOD), zip_of(GOOD, zipfile.ZIP_BZIP2), zip_of(GOOD, zipfile.ZIP_LZMA), zip_of(GOOD, 0)]
    whole += [tar_of(GOOD, f"w{end}") for end in ("", ":gz", ":bz2", ":xz")]
    whole += [tar_of(GOOD, "w", tarfile.GNU_FORMAT), tar_of(GOOD, "w", tarfile.USTAR_FORMAT)]
    hostile = {name: make() for name, make in ARCHIVES.items() if name not in LARGE}
    yield from hostile.items()
    whole += [content for content in hostile.values() if content]
    while True:
        content = bytearray(random_numbers.choice(whole))
        for _ in range(random_numbers.choice((1, 1, 2, 8))):
            place = random_numbers.randrange(len(content))
            end = min(len(content), place + random_numbers.choice((1, 2, 4, 100)))
            change = random_numbers.choice(("flip", "byte", "remove", "repeat", "swap"))
            if change == "flip":
                content[place] ^= 1 << random_numbers.randrange(8)
            elif change == "byte":
                content[place:end] = random_numbers.randbytes(end - place)
            elif change == "remove" and len(content) > 200:
                del content[place:end]
            elif change == "repeat":
                content[place:place] = content[place:end]
            else:
                other = random_numbers.randrange(len(content))
                content[place], content[other] = content[other], content[place]
        yield change, bytes(content)
