"""Checks of constructor options that raise a UserError with the name, the range and the value."""

from __future__ import annotations

from collections.abc import Iterable

from cab import UserError


def check_at_least(minimum: float, **options: float | None) -> None:
    """Raise UserError for an option below ``minimum``."""
    for name, value in options.items():
        if value is not None and value < minimum:
            raise UserError(f"{name} must be at least {minimum}, got {value}")


def check_positive(**options: float | None) -> None:
    """Raise UserError for an option that is not above 0."""
    for name, value in options.items():
        if value is not None and not value > 0:
            raise UserError(f"{name} must be above 0, got {value}")


def check_fraction(**options: float) -> None:
    """Raise UserError for an option outside of 0 to 1."""
    for name, value in options.items():
        if not 0.0 <= value <= 1.0:
            raise UserError(f"{name} must be between 0 and 1, got {value}")


def check_odd(**options: int | None) -> None:
    """Raise UserError for an option that is not odd and at least 1."""
    for name, value in options.items():
        if value is not None and (value < 1 or value % 2 == 0):
            raise UserError(f"{name} must be odd and at least 1, got {value}")


def check_even(**options: int) -> None:
    """Raise UserError for an option that is not even and at least 2."""
    for name, value in options.items():
        if value < 2 or value % 2:
            raise UserError(f"{name} must be even and at least 2, got {value}")


def check_choice(choices: Iterable[str], **options: str) -> None:
    """Raise UserError for an option that is not one of ``choices``."""
    for name, value in options.items():
        if value not in choices:
            raise UserError(f"{name} must be one of {', '.join(choices)}, got '{value}'")
