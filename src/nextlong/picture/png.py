"""PNG: the picture before and after, drawn by matplotlib, which brings its own fonts."""

from __future__ import annotations

import importlib
import io
import warnings
from typing import Any

from nextlong.errors import NextlongError
from nextlong.picture.before_after import HEIGHT, INK, OWN, WIDTH, Arc, Box, parts
from nextlong.picture.pieces import Pieces

_DOTS_PER_INCH = 200
_INCH = 100  # units of the picture


def png(pieces: Pieces, *, tokens: int, name: str) -> bytes:
    """Return the picture as PNG, 2,000 dots wide. Raises NextlongError without matplotlib."""
    matplotlib, figures, patches, paths = map(_required, ("", ".figure", ".patches", ".path"))
    with matplotlib.rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font", category=UserWarning)
        figure = figures.Figure(figsize=(WIDTH / _INCH, HEIGHT / _INCH), dpi=_DOTS_PER_INCH, facecolor="white")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, WIDTH), ylim=(HEIGHT, 0))
        axes.axis("off")
        for part in parts(pieces, tokens=tokens, name=name):
            if isinstance(part, Box):
                axes.add_patch(patches.Rectangle((part.x, part.y), part.width, part.height, facecolor=part.fill))
            elif isinstance(part, Arc):
                middle = ((part.left + part.right) / 2, part.y + part.depth)
                curve = paths.Path([(part.left, part.y), middle, (part.right, part.y)], [1, 3, 3])
                axes.add_patch(patches.PathPatch(curve, fill=False, edgecolor=OWN, linewidth=1.6 * 72 / _INCH))
            else:
                weight = "bold" if part.is_heading else "normal"
                axes.text(part.x, part.y, part.text, fontsize=part.size * 72 / _INCH, fontweight=weight, color=INK)
        file = io.BytesIO()
        figure.savefig(file, format="png")
    return file.getvalue()


def _required(name: str) -> Any:
    try:
        return importlib.import_module(f"matplotlib{name}")
    except ImportError:
        raise NextlongError(
            "matplotlib, which draws PNG, is not installed (SVG needs nothing); say: pip install 'nextlong[report]'"
        ) from None
