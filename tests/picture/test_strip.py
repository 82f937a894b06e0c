"""The strip: drawn to scale, one path a shade, and data that no text can break out of."""

import json
import math
import re

import pytest

from hand_made_spans import DOCUMENTS, EXTENDED, HOSTILE, span
from nextlong.picture import strip
from nextlong.picture.elements import document, element


def paths(svg):
    return {path.get("class"): path.get("d") for path in svg.iter("path")}


def test_chunks_are_as_wide_as_they_have_tokens():
    svg = strip.bar(EXTENDED, tokens=402, lead=1, scale=(0.25, 0.5), label="x")
    drawn = paths(svg)
    assert re.findall(r"M(\d+) \d+h(\d+)", drawn["own"]) == [("1", "100"), ("202", "100")]
    assert re.findall(r"M(\d+) \d+h(\d+)", drawn["shade7"]) == [("101", "100")]
    assert re.findall(r"M(\d+) \d+h(\d+)", drawn["shade0"]) == [("302", "100")]
    assert drawn["arc"].startswith("M51 44Q")
    assert drawn["arc"].endswith(" 252 44")
    assert svg.get("viewBox").split()[2] == "402"


def test_documents_without_cosines_take_turns():
    others = [span("document", 9, 3, 30, 40, group=2), span("document", 12, 4, 40, 50, group=3)]
    drawn = paths(strip.bar([*DOCUMENTS, *others], tokens=50, lead=0, scale=(0, 1), label="x"))
    assert set(drawn) == {"own", "shade6", "plain0", "plain1"}


@pytest.mark.parametrize(("score", "shade"), [(0.2, 0), (0.9, 7), (0.55, 4), (0.1, 0), (1.5, 7)])
def test_shades_grow_with_the_cosine(score, shade):
    assert strip.shade(score, (0.2, 0.9)) == shade


def test_equal_cosines_have_one_shade():
    assert strip.shade(0.5, (0.5, 0.5)) == strip.SHADES - 1


def test_no_text_ends_the_data():
    spans = [
        span("meta", 1, 1, 0, 5, score=1.0, source=f"</script>{HOSTILE}<!--"),
        span("negative", 9, 2, 5, 9, score=math.nan),
    ]
    held = strip.Held(texts=["</script><script>alert(1)</script>", "\u2028\x00\ud800"], words=[["</script>"], []])
    made = strip.explorer(spans, tokens=9, lead=1, scale=(0, 1), name="n", label="x", held=held)
    page = document(element("div", made))
    assert page.count("<script") == page.count("</script") == 1
    assert "<!--" not in page
    data = json.loads(re.search(r"<script[^>]*>(.*?)</script>", page, re.DOTALL).group(1))
    assert data["texts"] == ["</script><script>alert(1)</script>", "\u2028\ufffd\ufffd"]
    assert data["scores"] == [1.0, None]
    assert data["starts"] == [0, 5]


def test_the_legend_names_what_is_drawn():
    told = "".join(strip.legend(EXTENDED, lead=1, scale=(0.25, 0.5)).itertext())
    assert "cosine: 0.25 (pale) to 0.50 (strong)" in told
    assert "joins chunks" in told
    told = "".join(strip.legend(DOCUMENTS[:2], lead=0, scale=(0, 1)).itertext())
    assert "joins" not in told
    assert "cosine" not in told
