"""Templates escape every text where it enters; JSON ends no script element."""

import json

from tests.support.hand_made_spans import HOSTILE

from nextlong.picture import html


def test_values_are_escaped_and_cleaned():
    made = html.macro("picture/strip.html", "bar")(
        {}, "", "0 0 1 1", f'"<b>{HOSTILE}\ud800', False
    )
    assert "<b>" not in made
    assert "<script>" not in made
    assert "&#34;&lt;b&gt;" in made
    assert not any(mark in made for mark in "\x1b\u202e\ud800")


def test_json_ends_no_element_and_opens_no_comment():
    data = {"a": "</script><!--\u2028", "b": [1, ("\x00",)]}
    made = html.as_json(data)
    assert "<" not in made
    assert json.loads(made) == {"a": "</script><!--\u2028", "b": [1, ["\ufffd"]]}
