"""What a notebook shows of a run and a sequence: whole, escaped, and no script."""

import json
from html.parser import HTMLParser

from tests.support.hand_made_spans import HOSTILE

import nextlong
from nextlong import pipeline
from nextlong.runs.run import facts_html


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.texts.append(data)


def test_a_run_and_its_sequences_show_themselves(small_corpus, recipe_for, tmp_path):
    source = json.dumps([{"path": str(small_corpus), "name": HOSTILE}])
    small = ("compose.sequences=6", "compose.target_tokens=512", "export.formats=jsonl")
    pipeline.run(recipe_for(tmp_path / "run", f"ingest.sources={source}", *small))
    run = nextlong.open(tmp_path / "run")
    shown = Tags(run._repr_html_())
    assert set(shown.tags) == {
        "p",
        "b",
        "br",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    }
    assert "sequences: 6 of exactly 512 tokens" in shown.texts
    assert shown.tags.count("tr") == 6
    assert any("<script>" in text for text in shown.texts)
    sequence = run.sequence(2)
    drawn = Tags(sequence._repr_html_())
    assert drawn.tags.count("title") == 1 + len(sequence.spans) + sum(
        span.role == "meta" for span in sequence.spans
    )


def test_a_data_set_says_what_its_rows_hold():
    shown = "".join(
        Tags(
            facts_html("x", rows="1,234", columns="input_ids, labels", filled="98.7%")
        ).texts
    )
    assert shown == "xrows: 1,234columns: input_ids, labelsfilled: 98.7%"
