"""Explain what a class does wrong: where an exception was raised, and what to write instead."""

from __future__ import annotations

import contextlib
import os
import re
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cab.attention import Attention
from cab.errors import UserError, exits_as_errors, first_line
from cab.verification.subject import HEADS, WHOLE, Subject, takes

ARGUMENTS = "pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout"
FILLED = ("pattern", "embed_dim", "num_heads", "dropout")
"""Arguments that a constructor receives if it accepts them."""
ATTEND = "write attend(self, query, key, value, padding), which returns [B, H, N, E]"

HINTS = {
    r"has no attribute '(_modules|_parameters|_buffers|_losses|pattern|q_proj)'|before Module.__init__": (
        f"start the constructor with super().__init__(...); that of cab.Attention receives {ARGUMENTS}"
    ),
    r"__init__\(\) takes 1 positional": f"pass the arguments by name: super().__init__({ARGUMENTS})",
    r"__init__\(\) (missing|got an unexpected)": (
        "a constructor receives those of pattern, embed_dim, num_heads and dropout that it names; if it has other "
        "arguments, verify a function in a file that accepts some of these four and returns the module"
    ),
    r"has no attend\(\)": ATTEND,
    r"attend\(\) (takes|got)": "attend receives query, key, value and padding, and additional inputs by name",
    r"forward\(\) takes .* but 4 were given": (
        "in cross patterns, forward receives query, key and value; pass value to a module that reads one memory, and "
        "declare claims = Claims(uses_key=False)"
    ),
    r"could not create a primitive": "this processor lacks the dtype; declare `autocast_dtypes` without it",
    r"init_state must return": "convert another cache in init_state, step and prefill",
    r"unexpected keyword argument '(query|key)_padding_mask'": (
        "forward accepts query_padding_mask and key_padding_mask; without padding, declare padding_layouts = ()"
    ),
    r"PaddingMasks|tuple indices": (
        "the last argument of attend is PaddingMasks: use padding.key [B, M], True at padding, or None"
    ),
    r"scalar type|same dtype|dtype of the query": (
        "create tensors with the query's dtype, such as query.new_ones(...), and register constants as float32 buffers"
    ),
}
"""What to write instead, by a pattern of the exception's type and message."""

OTHERS = "<", f"{Path(__file__).parents[1]}{os.sep}", f"{Path(torch.__file__).parent}{os.sep}"
"""Where lines are not shown, in addition to the standard library: outside files, in this project and in torch."""


def explain(error: BaseException, subject: Subject) -> str:
    """Return type, first line and place of an exception, and what to write instead if that is known."""
    text = named(error)
    place = places(traceback.extract_tb(error.__traceback__))
    hint = next((hint for pattern, hint in HINTS.items() if re.search(pattern, text)), "")
    if not hint and issubclass(subject.cls, Attention) and subject.cls.forward is not Attention.forward:
        hint = f"do not override forward; {ATTEND}"
    if not hint and not subject.keeps_whole_contract:
        with contextlib.suppress(Exception):  # of a configuration that cannot be built
            hint = subject.declared("suggested_option", lambda _: "")(text)
    return text + (f" ({place})" if place else "") + (f"; {hint}" if hint else "")


def named(error: BaseException) -> str:
    """Return type and first line of an exception, or the line alone of a :class:`UserError`."""
    line, kind = first_line(error), type(error).__name__
    return line if line == kind or isinstance(error, UserError) else f"{kind}: {line}"


def places(frames: Iterable[traceback.FrameSummary]) -> str:
    """Return file, line and code of the last three frames in the user's code, the last one first."""
    own = [
        f for f in frames if not f.filename.startswith(OTHERS) and Path(f.filename).parent != Path(os.__file__).parent
    ]
    return ", called from ".join(f"{_shown(f.filename)}:{f.lineno} in {f.name}: `{f.line}`" for f in own[:-4:-1])


def _shown(file: str) -> str:
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path).rpartition(f"-packages{os.sep}")[2]


def check_runs(subject: Subject) -> None:
    """Build a module and call it once, and once with masks if it supports padding.

    Raises:
        UserError: the class cannot be built, the call fails, or it does not return a tensor of the query's shape.
    """
    filled = " ".join(name for name in FILLED if takes(subject.cls, name))
    step = f"build {subject.name} for pattern {subject.pattern} from {filled or 'no arguments'}"
    try:
        with torch.no_grad(), exits_as_errors():
            module = subject.build()
            heads = subject.options.get("num_heads", HEADS)
            step = f"run {subject.name} in pattern {subject.pattern} at width {module.embed_dim} with {heads} heads"
            if isinstance(module, Attention):
                _check_attend(module)
            inputs = subject.draw(module, WHOLE)
            output: Any = inputs.run(module)
            if not isinstance(output, Tensor) or output.shape != inputs.query.shape:
                returned = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
                raise TypeError(f"forward must return one tensor {list(inputs.query.shape)}, got {returned}")
            if subject.padding_layouts:
                step = f"run {subject.name} in pattern {subject.pattern} with masks"
                subject.draw(module, WHOLE, padding=subject.padding_layouts[0]).run(module)
    except Exception as error:
        raise UserError(f"cannot {step}: {explain(error, subject)}") from error


def _check_attend(module: Attention) -> None:
    """Make the next calls of ``attend`` raise if the result has another dtype than the query."""

    def checked(query: Tensor, *others: Any, **more: Any) -> Any:
        heads = type(module).attend(module, query, *others, **more)
        if isinstance(heads, Tensor) and heads.dtype != query.dtype:
            raise TypeError(f"attend must return the dtype of the query, {query.dtype}, got {heads.dtype}")
        return heads

    module.attend = checked
