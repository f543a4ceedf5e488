"""Adapters: modules of other packages as subjects of the conformance suite.

One module per kind: :mod:`hugging_face` (whole models), :mod:`function_attention` (functions on heads) and
:mod:`wrapped_module` (modules built by a factory). :func:`subject_class` resolves the names that `cab verify` accepts.
"""

from __future__ import annotations

from cab.verification.foreign.base import ForeignModule
from cab.verification.foreign.names import adapter_of, subject_class

__all__ = ["ForeignModule", "adapter_of", "subject_class"]
