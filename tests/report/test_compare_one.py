import io

import pytest
from rich.console import Console
from tests.support.changed_stats import changed

import nextlong
from nextlong.report import compare
from nextlong.runs.statistics.measure import measure


@pytest.fixture(scope="module")
def measured(shared_run):
    return measure(nextlong.open(shared_run))


def printed(measured, *, terminal):
    file = io.StringIO()
    compare.show_one(measured, Console(file=file, force_terminal=terminal, width=100))
    return file.getvalue()


def test_the_page_tells_every_block(measured):
    lines = printed(measured, terminal=False).splitlines()
    assert lines[0] == f"12 sequences of 2,048 tokens in {measured.run}"
    told = {" ".join(line.split()) for line in lines}
    hub = measured.chunks.reuse.hubs[0]
    first, uses = (
        measured.similarity.by_rank[0],
        measured.chunks.reuse.histogram[0].chunks,
    )
    assert told >= {
        "method nextlong", "From documents to sequences", "kept 12", "tokens in total 24,576",
        "negatives from the sequence's own document (must be 0) 0", "chunks that occur twice in a sequence (must be 0) 0",
        f"rank 1 {first.mean:.4f} (n = {first.count})", f"median {measured.distance_tokens.p50:,.0f}",
        f"chunks used 1× {uses:,} ({uses / measured.chunks.reuse.distinct_chunks:.1%})",
        f"{hub.source_id} · chunk {hub.ordinal} {hub.uses}",
    }  # fmt: skip


def test_a_screen_has_at_most_24_lines_and_the_warnings(measured):
    few = changed(measured, {"warnings": measured.warnings[:2]})
    file = io.StringIO()
    compare.show_screen(few, Console(file=file, width=80))
    lines = file.getvalue().splitlines()
    assert len(lines) <= 24
    told = {" ".join(line.split()) for line in lines}
    assert told >= {"method nextlong", "tokens in total 24,576"}
    assert lines[-1] == f"nextlong stats {measured.run} --all prints all"
    for warning in few.warnings:
        assert any(line.startswith(f"{warning.name} ") for line in told)
    assert "Mean cosine by rank" not in file.getvalue()


def test_a_control_is_called_one_in_words_and_in_json(measured):
    assert "only as a control" not in printed(measured, terminal=False)
    assert measured.as_json()["control"] == ""
    control = changed(
        measured,
        {
            "setting.negatives": "random-corpus",
            "similarity.cosine.mean": 0.5,
            "similarity.random.mean": 0.125,
        },
    )
    why = "Negatives are random (cosine 0.50, random pairs 0.12): a control of the paper's ablation, not hard negatives."
    assert control.as_json()["control"] == why
    assert f"only as a control {why}" in " ".join(
        printed(control, terminal=False).split()
    )
    values = {"setting.negatives": "tail", "similarity.random": None}
    tail = changed(measured, values).as_json()["control"]
    assert "a control of" in tail
    assert "random pairs" not in tail


def test_pipes_get_plain_text_and_terminals_colour(measured):
    assert "\x1b" not in printed(measured, terminal=False)
    assert "\x1b[1m" in printed(measured, terminal=True)
