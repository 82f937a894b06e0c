"""Colours can be told apart by readers with each kind of colour blindness, in light and dark."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from hand_made_spans import span
from nextlong.picture import palette
from nextlong.picture.palette import DARK, LIGHT
from nextlong.report.page import sequences

# Complete dichromacy in linear RGB: Machado, Oliveira and Fernandes, IEEE TVCG 15(6), 2009, table 1, severity 1.0.
SIMULATED = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
XYZ_OF_RGB = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour):
    rgb = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(colour, kind):
    """Return CIE L*a*b* of a colour as it is seen."""
    seen = np.clip(np.array(SIMULATED[kind]) @ linear(colour), 0, 1)
    ratio = (XYZ_OF_RGB @ seen) / XYZ_OF_RGB.sum(axis=1)
    x, y, z = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(one, other, kind):
    return float(np.linalg.norm(lab(one, kind) - lab(other, kind)))


@pytest.mark.parametrize("kind", SIMULATED)
@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_that_stand_side_by_side_differ(colours, kind):
    others = ["negative", "between", "plain0", *(f"shade{n}" for n in range(palette.SHADES))]
    for one, other in [*(("own", other) for other in others), ("plain0", "plain1")]:
        assert distance(colours[one], colours[other], kind) > 12, (one, other)
    for one, other in combinations(("own", "negative", "plain0", *sequences._MAP_COLOURS), 2):
        assert distance(colours[one], colours[other], kind) > 9, (one, other)
    for one, other in combinations(range(palette.RUNS), 2):
        assert distance(colours[f"run{one}"], colours[f"run{other}"], kind) > 9, (one, other)


@pytest.mark.parametrize("kind", SIMULATED)
@pytest.mark.parametrize(("colours", "towards"), [(LIGHT, -1), (DARK, 1)], ids=["light", "dark"])
def test_a_higher_cosine_stands_out_more(colours, towards, kind):
    lightness = [towards * lab(colours[f"shade{n}"], kind)[0] for n in range(palette.SHADES)]
    assert all(after - before > 3 for before, after in pairwise(lightness))


@pytest.mark.parametrize(("score", "shade"), [(0.2, 0), (0.9, 7), (0.55, 4), (0.1, 0), (1.5, 7)])
def test_shades_grow_with_the_cosine(score, shade):
    assert palette.colour(span("negative", 1, 1, 0, 5, score=score), 0, 9, (0.2, 0.9)) == f"shade{shade}"


def test_equal_cosines_have_one_shade():
    assert palette.colour(span("negative", 1, 1, 0, 5, score=0.5), 0, 9, (0.5, 0.5)) == f"shade{palette.SHADES - 1}"


def test_the_style_sheet_holds_every_colour_twice():
    css = palette.css()
    assert all(f"--{name}:{colour}" in css for colours in (LIGHT, DARK) for name, colour in colours.items())
