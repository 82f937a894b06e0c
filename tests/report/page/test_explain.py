"""What the page says in words: true of the run that it is said of."""

import pytest
from tests.support.invented_stats import plain, with_values

from nextlong.report.page import explain
from nextlong.report.page.cells import TEXTS
from nextlong.schemas import Layout


@pytest.mark.parametrize("layout", Layout)
def test_every_layout_has_an_opening_of_its_own(layout):
    others = [explain.opening(plain(other)) for other in Layout if other != layout]
    assert explain.opening(plain(layout)) not in others


def test_a_page_without_an_extended_run_is_read_otherwise_where_that_matters():
    extended, concatenated = plain(Layout.EXTENDED), plain(Layout.CONCATENATED)
    assert "negatives" in explain.reading("rank", [concatenated, extended], ["a", "b"])
    assert explain.reading("cost", [concatenated], ["a"]) == explain.reading(
        "cost", [extended], ["a"]
    )
    concatenated = plain(
        Layout.CONCATENATED, near_duplicates__chunks=None, similarity__random=None
    )
    of_documents = {
        name: explain.reading(name, [concatenated], ["a"]) for name in TEXTS["read"]
    }
    assert not [
        name
        for name, said in of_documents.items()
        if "negative" in said or "meta-" in said
    ]


def test_the_usual_cosine_is_told_only_for_encoders_of_which_it_is_known():
    extended = plain(Layout.EXTENDED)
    low, high = explain._COSINES["lsa"]
    usual = f"With lsa, five corpora that passed all checks had means of {low} to {high}; this run has 0.50. A check warns"
    assert usual in explain.reading("similarity", [extended], ["a"])
    assert "five corpora" not in explain.reading(
        "similarity", [plain(Layout.EXTENDED, setting__encoder="static")], ["a"]
    )
    assert "five corpora" not in explain.reading(
        "similarity", [plain(Layout.EXTENDED, similarity__random=None)], ["a"]
    )


def test_numbers_stand_beside_what_they_are_to_be_compared_to():
    extended = plain(Layout.EXTENDED)
    told = explain.reading("near", [extended], ["a"])
    assert told.endswith(
        "Filtered out: 5 chunks in 10 drafts, 0.5 per draft. A sequence has 15.0 negatives on average."
    )
    documents = plain(
        Layout.CONCATENATED, near_duplicates__chunks=None, near_duplicates__documents=3
    )
    assert explain.reading("near", [documents], ["a"]).endswith(
        "Filtered out: 3 of 200 documents (1.5%)."
    )
    random = "Random pairs of chunks have a mean cosine of 0.12 (90th percentile 0.25)."
    assert random in explain.reading("similarity", [extended], ["a"])
    assert "lsa" in explain.reading("similarity", [extended], ["a"])
    assert "lsa" not in explain.reading(
        "similarity", [plain(Layout.EXTENDED, setting__encoder="static:x")], ["a"]
    )
    other = plain(Layout.EXTENDED, similarity__random={"mean": 0.5, "p90": 0.75})
    assert explain.reading(
        "source-cosine", [extended, extended], ["base", "tail"]
    ).endswith(f"corpus. {random}")
    assert f"base: {random} tail: Random" in explain.reading(
        "source-cosine", [extended, other], ["base", "tail"]
    )
    assert "In this run that is 328 tokens." in explain.reading(
        "distance", [extended], ["a"]
    )
    assert explain.reading("chunks", [extended], ["a"]).endswith(
        "so a chunk of 2,048 characters (chunk.max_chars) has about 512 tokens on average; the longest chunk has 604."
    )
    assert "at least 2 chunks" in explain.reading("yield", [extended], ["a"])


def test_only_terms_that_a_run_has_a_use_for_are_explained():
    nothing = plain(
        Layout.CONCATENATED,
        setting__negatives=None,
        similarity=None,
        near_duplicates__chunks=None,
    )
    assert list(explain.glossary([nothing])) == ["token", "sequence", "chunk", "draft"]
    assert "near-duplicate" in explain.glossary(
        [nothing, with_values(nothing, {"near_duplicates__documents": 0})]
    )
    assert explain.glossary(
        [
            plain(Layout.EXTENDED),
            plain(Layout.EXTENDED, setting__negatives="random-corpus"),
        ]
    )["negative"] == (
        "a distractor chunk between two meta-chunks; in this run the chunks of other documents that are most similar to "
        "the meta-chunk before "
        "them; or random chunks of other documents."
    )
    meaning = explain.glossary([plain(Layout.EXTENDED)])["cosine"]
    assert meaning.endswith(
        "0 no common direction; unrelated text of this corpus has about 0.12."
    )


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {},
            "the chunks of other documents that are most similar to the meta-chunk before them. To predict",
        ),
        (
            {"setting__position": "tail"},
            "are most similar to the meta-chunk after them. To predict",
        ),
        (
            {"setting__negatives": "tail"},
            "the least similar of the chunks that were retrieved for the meta-chunk before them. To predict",
        ),
        (
            {"setting__negatives": "random-retrieved"},
            "to the meta-chunk before them, in random order. To predict",
        ),
        (
            {"setting__negatives": "random-corpus"},
            "between them: random chunks of other documents. To predict",
        ),
        (
            {"setting__negatives": "self-repeat"},
            "between them: copies of the meta-chunk before them. To predict",
        ),
        (
            {"setting__negatives": None},
            "between them: chunks of other documents. To predict",
        ),
        (
            {},
            "must use the one before it, 1,234 tokens earlier (median); it must ignore the similar text in between.",
        ),
        ({"distance_tokens": None}, "must use the one before it; it must ignore"),
    ],
)
def test_the_opening_says_what_the_settings_do(settings, told):
    assert told in explain.opening(plain(Layout.EXTENDED, **settings))
