import io
from dataclasses import replace

import pytest
from rich.console import Console

import nextlong
from nextlong.report import stats_page
from nextlong.runs import stats
from nextlong.runs.measures import CutOff


@pytest.fixture(scope="module")
def measured(shared_run):
    return stats.measure(nextlong.open(shared_run))


def printed(measured, *, terminal):
    file = io.StringIO()
    stats_page.show(measured, Console(file=file, force_terminal=terminal, width=100))
    return file.getvalue()


def test_the_page_tells_every_block(measured):
    lines = printed(measured, terminal=False).splitlines()
    assert lines[0] == f"12 sequences of 2,048 tokens in {measured.run}"
    told = {" ".join(line.split()) for line in lines}
    assert told >= {
        "method nextlong", "Yield", "kept 12", "tokens 24,576", "own-document negatives 0", "repeated chunks 0",
        f"rank 1 {measured.similarity_by_rank[0].mean:.4f} (mean of {measured.similarity_by_rank[0].count})",
        f"p50 {measured.distance_tokens.p50:,.0f}", f"used 1 {measured.reuse.histogram[0].chunks:,} chunks",
        f"{measured.reuse.hubs[0].uses} times {measured.reuse.hubs[0].source_id} · chunk {measured.reuse.hubs[0].ordinal}",
    }  # fmt: skip


def test_the_page_tells_what_is_cut_off(measured):
    assert measured.cut_off is None
    told = printed(replace(measured, cut_off=CutOff(1_500, 12_000)), terminal=False)
    assert "cut off 1,500 tokens of documents (12.5%)" in " ".join(told.split())


def test_pipes_get_plain_text_and_terminals_colour(measured):
    assert "\x1b" not in printed(measured, terminal=False)
    assert "\x1b[1m" in printed(measured, terminal=True)
