"""Errors caused by the user's input; the command line prints them on one line without a traceback."""

from __future__ import annotations

import contextlib
import difflib
import logging
import signal
from collections.abc import Iterable, Iterator

log = logging.getLogger(__name__)

EXAMPLE_COMMAND = "cab run task=lstf dataset=synthetic backbone=informer attention=abc pattern=NC preset=smoke"
"""Command that produces a first result within seconds and without data; suggested if there are no results."""
MOST_LISTED = 12
"""Number of names up to which an error about an unknown name lists all of them."""

SYNONYMS = {
    "lr": "learning_rate",
    "wd": "weight_decay",
    "bs": "batch_size",
    "epochs": "max_epochs",
    "steps": "max_steps",
    "warmup": "warmup_steps",
    "grad_clip": "max_grad_norm",
    "clip": "max_grad_norm",
    "amp": "precision",
    "fp16": "precision",
    "bf16": "precision",
    "workers": "num_workers",
    "model": "backbone",
    "output_dir": "results_dir",
    "out": "results_dir",
    "data_dir": "data_root",
}
"""Names that other libraries give to our options."""


class UserError(ValueError):
    """A mistake in a command, configuration, option or data file; the message says how to fix it.

    The command line exits with status 2. Control characters of the message, which can quote a file, are escaped.
    """

    def __init__(self, message: object) -> None:
        text = " ".join(str(message).split("\n"))
        super().__init__("".join(char if char.isprintable() else repr(char)[1:-1] for char in text))


class UnsupportedError(UserError):
    """An unsupported combination of existing parts; a sweep skips it and reports it."""


class Preempted(BaseException):
    """A signal stopped the run after a checkpoint; repeating the command resumes it.

    Like KeyboardInterrupt, it is not an error of the cell and ends a whole sweep.
    """

    def __init__(self, number: int) -> None:
        super().__init__(
            f"stopped by {signal.Signals(number).name}; repeat the command to resume from the last checkpoint"
        )
        self.signal = number


class ExitError(Exception):
    """Code of a user called ``sys.exit`` or raised another BaseException, which would end the command."""


@contextlib.contextmanager
def exits_as_errors() -> Iterator[None]:
    """Raise ExitError if code inside the block calls ``sys.exit``, or raises what is not an Exception or interrupt."""
    try:
        yield
    except (Exception, KeyboardInterrupt, GeneratorExit, Preempted):
        raise
    except SystemExit as error:
        raise ExitError(f"the code called sys.exit({error.code if error.code is not None else ''})") from error
    except BaseException as error:
        raise ExitError(f"the code raised {type(error).__name__}: {first_line(error)}") from error


@contextlib.contextmanager
def optional(title: str, warnings: list[str] | None = None) -> Iterator[None]:
    """Turn an error of the block, which a result does not need, into a warning, which is also added to ``warnings``."""
    try:
        with exits_as_errors():
            yield
    except BrokenPipeError:  # of the terminal, not of the block
        raise
    except Exception as error:
        warning = f"{title} failed: {type(error).__name__}: {first_line(error)}"
        log.warning("%s", warning)
        if warnings is not None:
            warnings.append(warning)


def similar_names(name: str, known: Iterable[str], *, number: int, cutoff: float) -> list[str]:
    """Return up to ``number`` known names with similar letters, the most similar first; case does not count."""
    by_lower = {option.lower(): option for option in known}
    return [by_lower[key] for key in difflib.get_close_matches(name.lower(), by_lower, n=number, cutoff=cutoff)]


def nearest_name(name: str, known: Iterable[str], *, cutoff: float = 0.5) -> str | None:
    """Return the known name that was probably meant: a synonym, an equal last part after a dot, or similar letters.

    >>> nearest_name("lr", ["trainer.learning_rate", "trainer.lr_min"])
    'trainer.learning_rate'
    >>> nearest_name("nc", ["CC", "NC"])
    'NC'
    """
    names, last = list(known), name.lower().replace("-", "_").rpartition(".")[2]
    meant = [option for option in names if option.lower().rpartition(".")[2] == SYNONYMS.get(last, last)]
    return next(iter([*meant, *similar_names(name, names, number=1, cutoff=cutoff)]), None)


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Return the error for an unknown name, with the closest known name, and with all known names if they are few.

    >>> print(unknown_name("attention", "Abd", ["abc", "vanilla"]))
    unknown attention 'Abd': did you mean 'abc'? Known: abc, vanilla
    >>> print(unknown_name("trainer", "quick", ["default"]))
    unknown trainer 'quick' (known: default)
    """
    names = sorted(known)
    listed, group = names, "known"
    if len(names) > MOST_LISTED:
        listed, group = similar_names(name, names, number=5, cutoff=0.0), f"nearest of {len(names)}"
    text = f"{group}: {', '.join(listed) or 'none'}"
    near = nearest_name(name, names)
    hint = f": did you mean '{near}'? {text[0].upper()}{text[1:]}" if near else f" ({text})"
    return UserError(f"unknown {kind} '{name}'{hint}")


def message_of(error: BaseException) -> str:
    """Return the message of an exception of any code, whose ``str`` may fail or have surrogates.

    That of a validation is its first error, with its place and value.
    """
    try:
        if hasattr(error, "errors") and callable(error.errors):  # of pydantic
            first = error.errors(include_url=False)[0]
            location = ".".join(map(str, first["loc"]))
            text = f"{location}: {first['msg']}, got {first['input']!r:.40}" if location else first["msg"]
            return text.replace("\n", " ")
        return str(error).encode(errors="backslashreplace").decode()
    except Exception:
        return ""


def first_line(error: BaseException, *, num_causes: int = 3) -> str:
    """Return the reason that an exception of other code gives, on one line.

    It is the first non-blank line of the message, with the next one if it announces that (``failed:``), or else the
    type; followed by the reason of its cause, if the message does not contain that.
    """
    lines = [line.strip() for line in message_of(error).split("\n") if line.strip()]
    text = next(iter(lines), type(error).__name__)
    if text.endswith(":") and len(lines) > 1:
        text = f"{text} {lines[1]}"
    cause = error.__cause__
    reason = first_line(cause, num_causes=num_causes - 1) if cause is not None and num_causes else ""
    return text if reason in " ".join([text, *lines]) else f"{text}: {reason}"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out: torch's CUDA error, a RuntimeError of its CPU allocator, or an OSError."""
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    words = ("allocate memory", "not enough memory", "out of memory", "bad_alloc")
    return isinstance(error, (RuntimeError, OSError)) and any(word in message_of(error).lower() for word in words)
