"""The strip: drawn to scale, one path a shade, and data that no text can break out of."""

import json
import math
import re

from tests.support.hand_made_spans import DOCUMENTS, EXTENDED, HOSTILE, span

from nextlong.picture import strip


def paths(svg):
    return dict(re.findall(r'<path class="([^"]+)" d="([^"]+)"', svg))


def test_chunks_are_as_wide_as_they_have_tokens():
    svg = strip.bar(EXTENDED, tokens=402, lead=1, scale=(0.25, 0.5), label="x")
    drawn = paths(svg)
    assert re.findall(r"M(\d+) \d+h(\d+)", drawn["own"]) == [
        ("1", "100"),
        ("202", "100"),
    ]
    assert re.findall(r"M(\d+) \d+h(\d+)", drawn["shade7"]) == [("101", "100")]
    assert re.findall(r"M(\d+) \d+h(\d+)", drawn["shade0"]) == [("302", "100")]
    assert drawn["arc"].startswith("M51 44Q")
    assert drawn["arc"].endswith(" 252 44")
    assert re.search(r'viewBox="0 0 402 102"', svg)


def test_documents_without_cosines_take_turns():
    others = [
        span("document", 9, 3, 30, 40, group=2),
        span("document", 12, 4, 40, 50, group=3),
    ]
    drawn = paths(
        strip.bar([*DOCUMENTS, *others], tokens=50, lead=0, scale=(0, 1), label="x")
    )
    assert set(drawn) == {"own", "shade6", "plain0", "plain1"}


def test_no_text_ends_the_data():
    spans = [
        span("meta", 1, 1, 0, 5, score=1.0, source=f"</script>{HOSTILE}<!--"),
        span("negative", 9, 2, 5, 9, score=math.nan),
    ]
    texts = {
        "texts": ["</script><script>alert(1)</script>", "\u2028\x00\ud800"],
        "words": [["</script>"], []],
    }
    page = strip.explorer(
        spans, lead=1, scale=(0, 1), name="n", label="x", texts=texts
    )["strip"]
    assert page.count("<script") == page.count("</script") == 1
    assert "<!--" not in page
    data = json.loads(
        re.search(r"<script[^>]*>(.*?)</script>", page, re.DOTALL).group(1)
    )
    assert data["texts"] == ["</script><script>alert(1)</script>", "\u2028\ufffd\ufffd"]
    assert data["scores"] == [None, None]  # a meta-chunk has no cosine of its own
    assert data["starts"] == [0, 5]


def test_the_legend_names_what_is_drawn():
    legend = strip.explorer(EXTENDED, lead=1, scale=(0.25, 0.5), name="n", label="x")[
        "legend"
    ]
    told = " ".join(re.sub("<.*?>", " ", legend).split())
    assert "negatives: cosine 0.25 0.50" in told
    assert re.findall(r"shade\d", legend) == [
        f"shade{n}" for n in range(8)
    ]  # low cosine first, in light and in dark
    assert "joins chunks" in told
    told = strip.explorer(DOCUMENTS[:2], lead=0, scale=(0, 1), name="n", label="x")[
        "legend"
    ]
    assert "joins" not in told
    assert "cosine" not in told
