"""Arguments: check what callers of the Python interface pass.

In:  an argument, its name, and how to fix a wrong one. Out: the plain value, or an
     ArgumentError. Scalars of numpy and torch are taken as the numbers that they hold:
     a seed of `torch.tensor(2)` must give the order of seed 2, and states must be JSON.
"""

from __future__ import annotations

import math
import numbers
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from os import PathLike
from pathlib import Path
from typing import Any, Final

from nextlong.errors import ArgumentError

MAX_INT64: Final = 2**63 - 1


def wrong(name: str, value: object, problem: str, *, fix: str) -> ArgumentError:
    """Return the error for an argument: `name=value problem; fix`."""
    shown = " ".join(repr(value).split())
    # A user recognizes a path by its end, and a path may have 4,096 bytes.
    may_be_path = isinstance(value, str | PathLike)
    max_chars = 4096 if may_be_path else 80
    return ArgumentError(where=name, value=shown[:max_chars], problem=problem, fix=fix)


def whole_number(
    value: Any,
    name: str,
    *,
    fix: str,
    min_value: int | None = 0,
    max_value: int = MAX_INT64,
) -> int:
    """Return a whole number between two limits; without a lower one if it is None."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise wrong(name, value, "is not a whole number", fix=fix)
    if min_value is not None and number < min_value:
        raise wrong(name, value, f"is below {min_value}", fix=fix)
    if number > max_value:
        raise wrong(name, value, f"is above {max_value}", fix=fix)
    return number


def number(value: Any, name: str, *, fix: str) -> Any:
    """Return a finite number, as exact as it was given (a fraction stays one)."""
    is_scalar = hasattr(value, "item") and getattr(value, "ndim", None) == 0
    scalar = value.item() if is_scalar else value
    is_number = isinstance(scalar, numbers.Real | Decimal)
    if not is_number or isinstance(scalar, bool) or not math.isfinite(scalar):
        raise wrong(name, value, "is not a number", fix=fix)
    return scalar


def whole_numbers(value: Any, name: str, *, fix: str) -> list[int]:
    """Return the items of a list of whole numbers from 0."""
    return [
        whole_number(item, f"{name}[{index}]", fix=fix)
        for index, item in enumerate(listed(value, name, fix=fix))
    ]


def word(value: object, name: str, allowed: Sequence[str | None]) -> None:
    """Raise ArgumentError unless the value is one of the allowed words."""
    is_known = value is None or isinstance(value, str)
    if not is_known or value not in allowed:
        choices = ", ".join(map(repr, allowed))
        raise wrong(name, value, "is not known", fix=f"it must be one of {choices}")


def path(value: Any, name: str, *, fix: str) -> Path:
    """Return a path that is given as a string or a path."""
    try:
        named = os.fspath(value)
    except TypeError:
        named = None
    if not isinstance(named, str) or not named:
        raise wrong(name, value, "is not a path", fix=fix)
    return Path(named)


def listed(value: Any, name: str, *, fix: str) -> list[Any]:
    """Return the items of a list, a tuple, an array or another iterable."""
    is_single = isinstance(value, str | bytes | Mapping)
    try:
        items = None if is_single else list(value)
    except TypeError:
        items = None
    if items is None:
        raise wrong(name, value, "is not a list", fix=fix)
    return items


def strings(value: Iterable[str], name: str, *, fix: str) -> list[str]:
    """Return the items of a list of strings."""
    items = listed(value, name, fix=fix)
    for index, item in enumerate(items):
        if not isinstance(item, str):
            raise wrong(f"{name}[{index}]", item, "is not a string", fix=fix)
    return items
