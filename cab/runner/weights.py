"""Load weights from files that a run, or somebody else, has written."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cab.errors import UserError, first_line
from cab.runner.failures import is_out_of_memory


def load_file(path: Path, device: torch.device | str = "cpu") -> Any:
    """Load the tensors and plain values in a file of ``torch.save``; nothing in it is executed.

    Raises:
        UserError: the file is missing, damaged, or contains other objects.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the unpickler, about files that torch.save did not write
            _check_sums(path)
            return torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; run the cell again with force=true") from None
    except Exception as error:  # torch raises many types, and its messages suggest to disable the protection
        if is_out_of_memory(error):
            raise
        raise UserError(
            f"{path} cannot be loaded ({type(error).__name__}): it is damaged or does not contain weights; "
            "run the cell again with force=true"
        ) from None


def _check_sums(path: Path) -> None:
    """Compare the archive's checksums with its content, which torch does not; older formats have none."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"wrong checksum of {damaged}")


def load_weights(path: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Load a state dict.

    Raises:
        UserError: as for :func:`load_file`, or the file does not contain tensors by name.
    """
    found = load_file(path, device)
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError(f"{path} does not contain weights by name; run the cell again with force=true")
    return found


def load_network(network: nn.Module, path: Path) -> None:
    """Load the weights of a file into a network on the CPU.

    Raises:
        UserError: as for :func:`load_weights`, or the weights do not match the network.
    """
    try:
        network.load_state_dict(load_weights(path))
    except (RuntimeError, AttributeError) as error:
        detail = next((line.strip() for line in str(error).splitlines()[1:] if line.strip()), first_line(error))
        raise UserError(
            f"the weights in {path} do not match the network ({detail}); run the cell again with force=true"
        ) from None
