"""Image: classify small gray images from their pixels in row order. CIFAR-10, and a stand-in of ten shapes."""

from __future__ import annotations

import codecs
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cab import UserError
from cab.errors import first_line
from cab.files.cache import checksums, read_bytes
from tasks.files import warn_of_left_out
from tasks.lra.rows import HOLD_OUT_ONE_IN, Counts, Example, Source, Splits, shuffled

TRAIN_FILES, TEST_FILES = tuple(f"data_batch_{n}" for n in range(1, 6)), ("test_batch",)
SIDE = 32
GRAY = np.array([0.2989, 0.5870, 0.1140])  # weights of red, green and blue: luma of ITU-R BT.601


ALLOWED = {
    "numpy.core.multiarray._reconstruct": np.array(0).__reduce__()[0],  # of this NumPy version
    "numpy._core.multiarray._reconstruct": np.array(0).__reduce__()[0],
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    "_codecs.encode": codecs.encode,
}


class Arrays(pickle.Unpickler):
    """Restricted unpickler for arrays and plain values, which calls no other code."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in ALLOWED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not allowed")
        return ALLOWED[f"{module}.{name}"]


def photographs(folder: Path) -> Source:
    """Read CIFAR-10 in its Python distribution, ``cifar-10-batches-py``."""
    files = [folder / name for name in (*TRAIN_FILES, *TEST_FILES)]
    warn_of_left_out(folder, files, "_batch")

    def read() -> Splits:
        images, labels = (np.concatenate(x) for x in zip(*(read_batch(folder / n) for n in TRAIN_FILES), strict=True))
        order, held_out = shuffled(len(labels)), len(labels) // HOLD_OUT_ONE_IN
        yield "train", _examples(images[order[held_out:]], labels[order[held_out:]])
        yield "validation", _examples(images[order[:held_out]], labels[order[:held_out]])
        yield "test", _examples(*read_batch(folder / TEST_FILES[0]))

    return Source({"reader": "cifar 1", "files": checksums(files)}, read)


def _examples(images: np.ndarray, labels: np.ndarray) -> Iterator[Example]:
    return (Example((image.tobytes(),), int(label)) for image, label in zip(images, labels, strict=True))


def read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read gray images [n, 1024] uint8 and labels [n]; UserError with the file if it is invalid."""
    try:
        file = io.BytesIO(read_bytes(path))
        batch = Arrays(file, encoding="bytes").load()
        if file.read(1):
            raise ValueError("data after the end of the batch")
        data, labels = batch[b"data"], batch[b"labels"]
    except UserError:
        raise
    except Exception as error:  # a damaged pickle raises many kinds
        raise UserError(f"{path} is not a CIFAR-10 batch, or is damaged ({first_line(error)})") from None
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (len(labels) or 1, 3 * SIDE * SIDE):
        raise UserError(f"{path} is not a CIFAR-10 batch: its data are not {len(labels)} rows of 3,072 bytes")
    wrong = next((i for i, label in enumerate(labels) if not (type(label) is int and 0 <= label < 10)), None)
    if wrong is not None:
        raise UserError(f"{path}, image {wrong}: expected a label from 0 to 9, got {labels[wrong]!r}")
    return gray(data.reshape(len(labels), 3, SIDE * SIDE)), np.array(labels, dtype=int)


def gray(images: np.ndarray) -> np.ndarray:
    """Convert colors [n, 3, pixels] to gray values [n, pixels], uint8, rounded like TensorFlow's rgb_to_grayscale."""
    weights = GRAY.astype(np.float32)
    return np.stack([weights @ (image.astype(np.float32) / 255) * 255.5 for image in images]).astype(np.uint8)


SHAPES: tuple[Callable[[np.ndarray, np.ndarray], np.ndarray], ...] = (
    lambda x, y: x**2 + y**2 < 1,  # disc
    lambda x, y: (x**2 + y**2 < 1) & (x**2 + y**2 > 0.45),  # ring
    lambda x, y: np.maximum(abs(x), abs(y)) < 0.85,  # square
    lambda x, y: (np.maximum(abs(x), abs(y)) < 0.95) & (np.maximum(abs(x), abs(y)) > 0.6),  # frame
    lambda x, y: (np.minimum(abs(x), abs(y)) < 0.25) & (np.maximum(abs(x), abs(y)) < 1),  # plus
    lambda x, y: (abs(abs(x) - abs(y)) < 0.3) & (np.maximum(abs(x), abs(y)) < 1),  # cross
    lambda x, y: (abs(abs(y) - 0.6) < 0.25) & (abs(x) < 1),  # two horizontal bars
    lambda x, y: (abs(abs(x) - 0.6) < 0.25) & (abs(y) < 1),  # two vertical bars
    lambda x, y: (y < 0.85) & (y > 2 * abs(x) - 0.95),  # triangle
    lambda x, y: (abs(x - y) < 0.35) & (np.maximum(abs(x), abs(y)) < 1),  # diagonal
)


def generated_shapes(side: int, counts: Counts) -> Source:
    """Return images of ``side`` x ``side`` pixels: a shape of any size, position and brightness on noise."""
    grid = np.arange(side) + 0.5

    def generate(rng: np.random.Generator, count: int) -> Iterator[Example]:
        for _ in range(count):
            label, radius = int(rng.integers(len(SHAPES))), side * rng.uniform(0.2, 0.4)
            center = rng.uniform(radius, side - radius, size=2)
            inside = SHAPES[label]((grid - center[1])[None] / radius, (grid - center[0])[:, None] / radius)
            dark, bright = rng.uniform(0, 80), rng.uniform(140, 255)
            image = np.where(inside, bright, dark) + rng.normal(0, 12, size=inside.shape)
            yield Example((np.clip(image, 0, 255).astype(np.uint8).tobytes(),), label)

    return Source.generated("shapes 1", counts, generate, side=side)
