"""Palette: one colour for one thing, in strips, charts, the viewer and standalone SVG files.

Out: the colours by name, and the same as CSS custom properties for a light and a dark page. Hues are Okabe and Ito's;
`tests/picture/test_palette.py` simulates three kinds of colour blindness. `shade` colours order cosines from low to high:
pale to deep blue on white, deep to pale on black, so that a high cosine always stands out.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Final

from nextlong.picture.pieces import CHUNK_ROLES
from nextlong.schemas import Span

SHADES: Final = 8
RUNS: Final = 6  # colours for data sets shown side by side


def _named(own: str, plain: Sequence[str], between: str, shades: Sequence[str], runs: Sequence[str]) -> dict[str, str]:
    """Name the colours of: the document that a sequence is about, documents without a cosine, separators, cosines, runs."""
    numbered = {"plain": plain, "shade": shades, "run": runs}
    listed = {f"{name}{n}": colour for name, colours in numbered.items() for n, colour in enumerate(colours)}
    return {"own": own, "negative": shades[5], "between": between, **listed}


LIGHT: Final = _named(
    own="#d55e00",
    plain=("#b9c0c9", "#8f99a5"),
    between="#444c56",
    shades=("#d6e6f5", "#b9d5ee", "#98c1e4", "#74abd8", "#5193c9", "#337ab6", "#1b609d", "#0b477f"),
    runs=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
)
DARK: Final = _named(
    own="#f58a3a",
    plain=("#5b6571", "#8a95a1"),
    between="#c3ccd6",
    shades=("#17324b", "#1d4468", "#245785", "#2f6ca3", "#4285c0", "#5f9fd6", "#86baea", "#b5d8fb"),
    runs=("#3f9bdc", "#f07f35", "#1fb98c", "#e09ac3", "#e8d04a", "#8fd0f5"),
)


def css() -> str:
    """Return the palette as custom properties, and a class for each colour that fills shapes and backgrounds."""
    light, dark = (";".join(f"--{name}:{colour}" for name, colour in colours.items()) for colours in (LIGHT, DARK))
    classes = "".join(f".{name}{{fill:var(--{name});background:var(--{name})}}" for name in LIGHT)
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}{classes}\n"


def colour(piece: Span, order: int, lead: int, scale: tuple[float, float]) -> str:
    """Return the name of a piece's colour; `order` counts documents, of which those without cosines alternate."""
    if piece.role not in CHUNK_ROLES:
        return "between"
    if piece.doc_id == lead:
        return "own"
    if not isfinite(piece.score):
        return f"plain{order % 2}"
    least, most = scale  # the cosines of the first shade and of the last
    share = (piece.score - least) / (most - least) if most > least else 1.0
    return f"shade{min(SHADES - 1, max(0, int(share * SHADES)))}"
