import sys
from xml.etree import ElementTree

import pytest
from tests.support.hand_made_spans import DOCUMENTS, EXTENDED, HOSTILE, span

from nextlong.errors import NextlongError
from nextlong.picture import before_after

SVG = "{http://www.w3.org/2000/svg}"


def boxes(spans, tokens):
    root = ElementTree.fromstring(before_after.svg(spans, tokens=tokens, name="n"))
    return [
        (own.find(f"{SVG}title").text, float(own.get("width")))
        for own in root.iter(f"{SVG}rect")
        if len(own)
    ]


def test_every_chunk_is_there_before_and_after():
    drawn = boxes(EXTENDED, 402)
    assert [told for told, _ in drawn] == [
        "meta: s, 100 tokens",
        "meta: s, 100 tokens",
        "bos: s, 1 tokens",
        "meta: s, 100 tokens",
        "negative: s, 100 tokens, cosine 0.500",
        "separator: s, 1 tokens",
        "meta: s, 100 tokens",
        "negative: s, 100 tokens, cosine 0.250",
    ]
    unit = (before_after.WIDTH - 2 * before_after.MARGIN) / 402
    assert drawn[0][1] == pytest.approx(100 * unit - 0.6, abs=0.01)


def test_other_methods_are_drawn_too():
    svg = before_after.svg(DOCUMENTS, tokens=30, name="n")
    assert len(boxes(DOCUMENTS, 30)) == 2 + 3
    assert "the unchanged document next to 1 other document" in svg
    assert "<path" not in svg


def test_hostile_names_stay_names():
    spans = [span("meta", 1, 1, 0, 5, score=1.0, source=HOSTILE)]
    root = ElementTree.fromstring(before_after.svg(spans, tokens=5, name=HOSTILE))
    assert {own.tag.removeprefix(SVG) for own in root.iter()} <= {
        "svg",
        "title",
        "rect",
        "text",
    }
    assert any("<script>" in (own.text or "") for own in root.iter(f"{SVG}title"))


@pytest.mark.heavy
@pytest.mark.parametrize("spans", [EXTENDED, DOCUMENTS])
def test_png_has_the_magic_of_png(spans):
    assert before_after.png(spans, tokens=402, name="n").startswith(b"\x89PNG\r\n")


def test_without_matplotlib_png_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(NextlongError, match=r"pip install 'nextlong\[png\]'"):
        before_after.png(EXTENDED, tokens=402, name="n")
