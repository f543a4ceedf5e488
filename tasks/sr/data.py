"""Image pairs: SR3's folders, folders of raw images, or generated images."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from cab import UserError
from cab.data.sources import data_set
from cab.files.cache import checksums, digest_of, prepared, progress
from cab.files.disk import visible_files
from tasks.files import find_data, read_image, warn_of_left_out

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
IMAGE_KINDS = ("truth", "blurred")


_NUMBERS = re.compile(r"(\d+)")


def degrade(image: np.ndarray, low: int) -> np.ndarray:
    """Downsample ``image`` [H, W, 3] uint8 to ``low`` pixels per side and upsample it again (bicubic)."""
    size = image.shape[1], image.shape[0]
    small = Image.fromarray(image).resize((low, low), Image.Resampling.BICUBIC)
    return np.asarray(small.resize(size, Image.Resampling.BICUBIC))


def center_crop(image: np.ndarray, size: int) -> np.ndarray:
    """Scale the shorter side to ``size`` (bicubic) and crop the center of the longer one."""
    height, width = image.shape[:2]
    scale = size / min(height, width)
    shape = max(size, round(width * scale)), max(size, round(height * scale))
    scaled = np.asarray(Image.fromarray(image).resize(shape, Image.Resampling.BICUBIC))
    top, left = (scaled.shape[0] - size) // 2, (scaled.shape[1] - size) // 2
    return scaled[top : top + size, left : left + size]


def list_images(folder: Path) -> list[Path]:
    """Return the image files below ``folder``, sorted; numbers in their names count as numbers."""
    images = [path for path in visible_files(folder, "**/*") if path.suffix.lower() in SUFFIXES]
    warn_of_left_out(folder, images)
    return sorted(
        images, key=lambda path: [(int(x), x) if x.isdecimal() else (0, x) for x in _NUMBERS.split(str(path))]
    )


class ImagePairs(Dataset[dict[str, Tensor]]):
    """Images and their low-resolution versions in [-1, 1], [B, 3, H, W]; with ``mirror`` flipped at random.

    Args:
        truth, blurred: [N, H, W, 3] uint8, not copied (a memory map for files).
        contents: checksum and file of each image; empty for generated ones.
    """

    def __init__(
        self, truth: np.ndarray, blurred: np.ndarray, *, mirror: bool, contents: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.truth, self.blurred, self.mirror, self.contents = truth, blurred, mirror, contents

    def __len__(self) -> int:
        return len(self.truth)

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        mirrored = torch.rand(len(indices)) < 0.5 if self.mirror else torch.zeros(len(indices), dtype=torch.bool)
        batch = {}
        for name, images in zip(IMAGE_KINDS, (self.truth, self.blurred), strict=True):
            x = torch.from_numpy(np.stack([images[i] for i in indices])).permute(0, 3, 1, 2).float() / 127.5 - 1.0
            batch[name] = torch.where(mirrored[:, None, None, None], x.flip(3), x)
        return {**batch, "index": torch.tensor(indices)}

    def subset(self, start: int, stop: int, *, mirror: bool) -> ImagePairs:
        part = slice(start, stop)
        return ImagePairs(self.truth[part], self.blurred[part], mirror=mirror, contents=self.contents[part])


def read_pairs(name: str, data_root: Path | None, *, low: int, high: int) -> tuple[ImagePairs, dict[str, Any]]:
    """Read the pairs of ``name`` (ffhq, celebahq); also return an identifier.

    They are in SR3's layout ``<name>_<low>_<high>/{hr_<high>,sr_<low>_<high>}``, or are made from a folder ``<name>``
    of images of any size, or from SR3's layout of larger images: scaled, cropped, downsampled and upsampled.

    Raises:
        UserError: there is no such folder, or an image is broken, not RGB, of the wrong size, or unpaired.
    """
    layout = f"{name}_{low}_{high}"
    held_out = "task.num_held_out=N, which holds out N images of ffhq" if name != "ffhq" else "dataset=synthetic"
    path = find_data(name, data_root, layout, name, *_larger_layouts(name, data_root, high), instead=held_out)
    if path.name == layout:
        return _from_files(path / f"hr_{high}", path / f"sr_{low}_{high}", low, high)
    return _from_files(path, None, low, high)


def _larger_layouts(name: str, data_root: Path | None, high: int) -> list[str]:
    """Return the folders ``<name>_*_<size>/hr_<size>`` of images with ``high`` pixels per side or more."""
    folders = data_set(name).folders if data_root is not None else ()
    found = [path for folder in folders for path in (data_root / folder).glob(f"{name}_*_*/hr_*")]  # type: ignore[operator]
    sizes = {path: int(size) for path in found if (size := path.name.removeprefix("hr_")).isdigit()}
    return [f"{path.parent.name}/{path.name}" for path, size in sorted(sizes.items()) if size >= high]


def read_images(folder: Path, names: Sequence[str], *, low: int, high: int) -> tuple[ImagePairs, dict[str, Any]]:
    """Read images of any size below a folder in the order of their names, as :func:`read_pairs`."""
    return _from_files(folder, None, low, high, names)


def _from_files(
    folder: Path, blurred: Path | None, low: int, high: int, names: Sequence[str] = ()
) -> tuple[ImagePairs, dict[str, Any]]:
    files = [folder / name for name in names] or list_images(folder)
    if not files:
        raise UserError(f"no images in {folder}: expected {', '.join(SUFFIXES)}")
    partners = [blurred / path.relative_to(folder) for path in files] if blurred is not None else []
    for path in partners:
        if not path.is_file():
            raise UserError(f"{path} is missing: every image of hr_{high} needs a counterpart with the same path")
    if blurred is not None:
        warn_of_left_out(blurred, partners)
    sums = checksums(files)
    key = {"truth": digest_of(sums), "blurred": digest_of(checksums(partners)), "low": low, "high": high}
    key |= {} if files == sorted(files) else {"order": "hash" if names else "numbers"}

    def whole(path: Path) -> np.ndarray:
        image = read_image(path, "RGB")
        if image.shape[:2] != (high, high):
            raise UserError(f"{path} is {image.shape[1]} x {image.shape[0]} pixels, not {high} x {high}")
        return image

    def build(target: Path) -> None:
        shape = (len(files), high, high, 3)
        paths = [target / f"{kind}.npy" for kind in IMAGE_KINDS]
        truth, low_images = (np.lib.format.open_memmap(p, mode="w+", dtype=np.uint8, shape=shape) for p in paths)
        for i, path in enumerate(progress(files, "reading images")):
            truth[i] = whole(path) if partners else center_crop(read_image(path, "RGB"), high)
            low_images[i] = whole(partners[i]) if partners else degrade(truth[i], low)

    ready = prepared("sr", key, build)
    truth, low_images = (np.load(ready / f"{kind}.npy", mmap_mode="r") for kind in IMAGE_KINDS)
    contents = list(zip(sums.values(), map(str, files), strict=True))
    return ImagePairs(truth, low_images, mirror=False, contents=contents), {
        "folder": (folder if blurred is None else folder.parent).name,
        "images": len(files),
        **key,
    }


def make_pairs(count: int, paint: Callable[[int, int, int], np.ndarray], *, low: int, high: int) -> ImagePairs:
    """Generate ``count`` images and their low-resolution versions."""
    truth = np.stack([paint(i, low, high) for i in range(count)])
    return ImagePairs(truth, np.stack([degrade(image, low) for image in truth]), mirror=False)


CELL_COLORS = np.array([(red, green) for red in (50, 125, 200) for green in (50, 125, 200)], dtype=np.float64)
"""Red and green of a cell: an image has six of these nine colors."""
NUM_COLORS = 6
SAID = np.array([20, 90, 160, 230], dtype=np.float64)
"""Blue of a legend cell: horizontal stripes, vertical stripes, checkerboard, no texture."""
UNSAID = 125.0  # blue of all other cells: the mean of SAID
CONTRAST = 50.0
"""Avoids clipping at 0 or 255, which would reveal a texture by the mean of its cell."""


def render(number: int, low: int, high: int) -> np.ndarray:
    """Generate image ``number`` [high, high, 3] uint8, deterministically.

    A low-resolution pixel is a cell of one color, given by its red and green. The first row of cells is the legend:
    each color of the image at least once, in random order, with a texture encoded in blue. All other cells have the
    texture of their color, with a period of one cell, so that it is invisible at low resolution.
    """
    rng = np.random.default_rng([8, number])
    cell = high // low
    count = min(NUM_COLORS, low)
    colors = CELL_COLORS[rng.permutation(len(CELL_COLORS))[:count]]
    meant = rng.integers(len(SAID), size=count)
    legend = rng.permutation(np.concatenate([np.arange(count), rng.integers(count, size=low - count)]))
    which = np.concatenate([legend[None], rng.integers(count, size=(low - 1, low))])
    blue = np.full((low, low), UNSAID)
    blue[0] = SAID[meant[legend]]
    y, x = np.mgrid[0:high, 0:high] // max(cell // 2, 1) % 2 * 2.0 - 1.0
    textures = CONTRAST * np.stack([y, x, x * y, np.zeros_like(x)])
    plain = np.concatenate([colors[which], blue[:, :, None]], axis=2).repeat(cell, axis=0).repeat(cell, axis=1)
    kind = meant[which].repeat(cell, axis=0).repeat(cell, axis=1)
    texture = np.take_along_axis(textures, kind[None], axis=0)[0]
    texture[:cell] = 0.0
    return (plain + texture[:, :, None]).clip(0, 255).round().astype(np.uint8)
