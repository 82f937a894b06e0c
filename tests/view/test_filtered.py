"""Left out: every reason with its count as the steps counted it, and examples that are what they are said to be."""

import json
from collections import Counter

import pytest
from tests.conftest import write_corpus
from tests.support.counted import counts_of, total

import nextlong
from nextlong import pipeline
from nextlong.runs.statistics.measure import measure
from nextlong.view import filtered


@pytest.fixture(scope="module")
def run(recipe_for, tmp_path_factory):
    """A run of a corpus with a copy, a broken line, a text that an evaluation holds, a document too long, one not wanted."""
    folder = tmp_path_factory.mktemp("left-out")
    write_corpus(folder / "corpus", documents=100)
    first = (folder / "corpus" / "0.jsonl").read_text().splitlines()[0]
    words = " ".join(f"word{n}" for n in range(400))
    lines = [
        first,
        json.dumps({"id": "long", "text": "\n".join(words for _ in range(9))}),
        '{"id": "broken"',
    ]
    lines.append(json.dumps({"id": "unwanted", "text": words}))
    (folder / "corpus" / "4.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "eval.jsonl").write_text(
        json.dumps({"text": json.loads(first)["text"]}) + "\n"
    )
    sources = json.dumps(
        [
            {
                "path": str(folder / "corpus"),
                "name": "small",
                "filter": "id <> 'unwanted'",
            }
        ]
    )
    changes = (
        f"ingest.sources={sources}",
        "ingest.max_reject_share=0.5",
        f"decontaminate.files=[{folder / 'eval.jsonl'}]",
    )
    pipeline.run(
        recipe_for(
            folder / "run",
            *changes,
            "compose.sequences=all",
            "compose.target_tokens=1024",
        )
    )
    return nextlong.open(folder / "run")


@pytest.fixture(scope="module")
def kinds(run):
    return {
        kind.reason if kind.key.startswith("corpus") else kind.key: kind
        for kind in filtered.kinds(run)
    }


def test_records_that_are_no_documents(kinds):
    assert kinds["rejected: broken JSON"].count == 1
    (entry,) = kinds["rejected: broken JSON"].entries()
    assert entry.name.endswith("4.jsonl:3")
    assert entry.detail


def test_documents_for_which_where_does_not_hold(kinds):
    assert kinds["removed by the source filter"].count == 1
    (entry,) = kinds["removed by the source filter"].entries()
    assert (entry.name, entry.detail[:11]) == ("unwanted", "word0 word1")


def test_copies(run, kinds):
    assert kinds["exact duplicate of another document"].count == 1
    (entry,) = kinds["exact duplicate of another document"].entries()
    assert entry.doc_id >= 0


def test_contaminated_chunks(run, kinds):
    kind = kinds["shares words with an evaluation text"]
    entries = list(kind.entries())
    assert (
        len(entries)
        == kind.count
        == total(run.steps["decontaminate"], "contaminated")
        > 0
    )


def test_drafts_that_became_no_sequence(run, kinds):
    expected = Counter()
    for own in counts_of(run.steps["draft"]) + counts_of(run.steps["compose"]):
        expected.update(own["dropped"])
    found = {
        kind.reason: kind.count
        for key, kind in kinds.items()
        if key.startswith(("draft", "compose"))
    }
    assert found == {reason: count for reason, count in expected.items() if count}
    too_long = next(kind for kind in kinds.values() if "longer than" in kind.reason)
    assert [entry.name for entry in too_long.entries()] == ["long"]


def test_the_reasons_and_counts_of_the_corpus_are_those_of_the_statistics(run, kinds):
    told = {one.reason: one.count for one in measure(run).corpus.left_out}
    assert told == {reason: kinds[reason].count for reason in told}
    assert len(told) == 4
