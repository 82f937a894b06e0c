"""Argument types: what several commands read from a word of the command line."""

from __future__ import annotations

import argparse
import math
from contextlib import suppress
from functools import partial


def words(text: str) -> list[str]:
    """Return the words of a list with commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def _above(text: str, *, kind: type[int] | type[float]) -> float:
    """Return a number above 0; argparse reports ValueErrors without a reason."""
    value = math.nan
    with suppress(ValueError):
        value = kind(text)
    if math.isfinite(value) and value > 0:
        return value
    wanted = "a number above 0, such as 1e8"
    if kind is int:
        wanted = "a whole number of at least 1"
    raise argparse.ArgumentTypeError(f"{text} is not {wanted}")


count = partial(_above, kind=int)
amount = partial(_above, kind=float)


def add_verbose(parser: argparse.ArgumentParser) -> None:
    """Add the option -v, which every command has."""
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="show every step, and the traceback of an error",
    )
