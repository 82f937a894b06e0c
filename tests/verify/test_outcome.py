"""Tests."""

import io
import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from nextlong.verify.outcome import CheckOutcome, as_json, in_words, passed, show

WHY = st.sampled_from(["", "there are none"])


@given(examples=st.lists(st.text(), max_size=9), skipped=WHY, not_needed=WHY)
def test_every_breach_counts_and_the_first_five_are_told(examples, skipped, not_needed):
    outcome = CheckOutcome("c", "things", skipped=skipped, not_needed=not_needed)
    for example in examples:
        outcome.breach(example)
    assert (outcome.breaches, outcome.examples) == (len(examples), examples[:5])
    unchecked = "not needed" if not_needed else "skipped" if skipped else "pass"
    assert outcome.result == ("breach" if examples else unchecked)


def test_an_error_names_its_file_or_its_kind():
    assert (
        in_words(FileNotFoundError(2, "No such file or directory", "/a/b"))
        == "/a/b: No such file or directory"
    )
    assert in_words(ValueError("odd")) == "ValueError: odd"
    assert in_words(ValueError()) == "ValueError"


SOUND = CheckOutcome("hashes", "files", checked=12_345)


SKIPPED = CheckOutcome("vectors", "vectors", skipped="openai:x cannot be asked twice")


NOT_NEEDED = CheckOutcome("candidates", "meta-chunks", not_needed="this run mined none")


BROKEN = CheckOutcome(
    "spans", "sequences", checked=3, breaches=7, examples=["one [bold]", "two"]
)


def test_a_breach_is_no_pass_and_a_skipped_check_is_no_breach():
    assert passed([SOUND, SKIPPED])
    assert not passed([SOUND, BROKEN])


def test_a_line_a_check_then_its_breaches_then_their_number():
    sink = io.StringIO()
    show(
        [SOUND, SKIPPED, NOT_NEEDED, BROKEN], Path("run"), Console(file=sink, width=120)
    )
    lines = [" ".join(line.split()) for line in sink.getvalue().splitlines()]
    assert "hashes 12,345 files pass" in lines
    assert "vectors 0 vectors skipped openai:x cannot be asked twice" in lines
    assert "candidates 0 meta-chunks not needed this run mined none" in lines
    assert "spans 3 sequences breach 7 breaches" in lines
    assert lines[-3:] == [
        "spans: one [bold]",
        "spans: two",
        "7 breaches; 1 check skipped",
    ]


def test_skipped_checks_are_counted_at_the_end():
    for skipped, told in (
        (0, "no breach"),
        (1, "no breach; 1 check skipped"),
        (2, "no breach; 2 checks skipped"),
    ):
        sink = io.StringIO()
        show(
            [SOUND, NOT_NEEDED] + [SKIPPED] * skipped,
            Path("run"),
            Console(file=sink, width=120),
        )
        assert sink.getvalue().splitlines()[-1] == told


def test_json_holds_every_check():
    found = json.loads(as_json([SOUND, BROKEN], Path("run")))
    assert (found["run"], found["passed"]) == ("run", False)
    assert [
        (check["check"], check["result"], check["examples"])
        for check in found["checks"]
    ] == [
        ("hashes", "pass", []),
        ("spans", "breach", ["one [bold]", "two"]),
    ]
