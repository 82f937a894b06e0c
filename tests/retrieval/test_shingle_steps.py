from tests.support.altered_corpora import breaches, rows_of, write_source

import nextlong
from nextlong.runs.statistics.measure import measure


def copied(rows):
    """Return the rows and a second copy of each with one word in twenty changed."""
    changed = [
        row
        | {
            "id": f"{row['id']}-copy",
            "text": " ".join("other" if n % 20 == 10 else w for n, w in words),
        }
        for row in rows
        for words in [[*enumerate(row["text"].split(" "))]]
    ]
    return [*rows, *changed]


def own_copies(run):
    """Return how many negatives are of a copy of their meta-document."""
    found = 0
    for sequence in run.sequences():
        meta = {
            s.source_id.removesuffix("-copy")
            for s in sequence.spans
            if s.role == "meta"
        }
        found += sum(
            s.source_id.removesuffix("-copy") in meta
            for s in sequence.spans
            if s.role == "negative"
        )
    return found


def test_near_duplicates_of_the_meta_document_are_no_negatives(
    recipe_for, small_corpus, tmp_path
):
    sources = write_source(tmp_path / "corpus", copied(rows_of(small_corpus)[:130]))
    plain = nextlong.run(
        recipe_for(
            tmp_path / "run",
            sources,
            "compose.sequences=6",
            "mine.near_duplicates=null",
        )
    )
    planted = own_copies(plain)
    assert measure(plain).near_duplicates.chunks is None
    screened = nextlong.run(
        recipe_for(
            tmp_path / "run", sources, "compose.sequences=6", "mine.near_duplicates=0.8"
        )
    )
    left = own_copies(screened)
    assert planted > 20
    assert left <= planted // 20
    assert measure(screened).near_duplicates.chunks >= planted - left
    assert "near-duplicates among negatives" not in breaches(tmp_path / "run")


def test_no_negative_is_nearer_than_max_similarity(recipe_for, started, tmp_path):
    run = nextlong.run(recipe_for(started(tmp_path / "run"), "mine.max_similarity=0.7"))
    assert (
        max(
            s.score
            for sequence in run.sequences()
            for s in sequence.spans
            if s.role == "negative"
        )
        <= 0.7
    )
