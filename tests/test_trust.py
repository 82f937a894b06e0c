"""What is kept out of a data set: near-copies, nearly equal documents and evaluation texts, end to end."""

import json
from pathlib import Path

import pytest

import nextlong
from counted import total
from nextlong import pipeline
from nextlong.errors import CorpusError
from nextlong.recipe import Decontaminate
from nextlong.report import summary
from nextlong.runs.stats import measure
from nextlong.verify.checks import verify

QUESTION = (
    "Which of the seven captains of the northern harbour kept a brass telescope beside the tide tables in winter?"
)


def rows_of(corpus):
    return [json.loads(line) for path in sorted(corpus.glob("*.jsonl")) for line in path.read_text().splitlines()]


def write(folder, rows):
    folder.mkdir()
    (folder / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"ingest.sources=[{{path: {folder}, name: small}}]"


def copied(rows):
    """Return the rows and a second copy of each with one word in twenty changed."""
    changed = [
        row | {"id": f"{row['id']}-copy", "text": " ".join("other" if n % 20 == 10 else w for n, w in words)}
        for row in rows
        for words in [[*enumerate(row["text"].split(" "))]]
    ]
    return [*rows, *changed]


def own_copies(run):
    """Return how many negatives are of a copy of their meta-document."""
    found = 0
    for sequence in run.sequences():
        meta = {s.source_id.removesuffix("-copy") for s in sequence.spans if s.role == "meta"}
        found += sum(s.source_id.removesuffix("-copy") in meta for s in sequence.spans if s.role == "negative")
    return found


def breaches(run_dir):
    return {outcome.check: outcome.examples[0] for outcome in verify(run_dir) if outcome.breaches}


def test_near_copies_of_the_meta_document_are_no_negatives(recipe_for, small_corpus, tmp_path):
    sources = write(tmp_path / "corpus", copied(rows_of(small_corpus)))
    plain = nextlong.run(recipe_for(tmp_path / "run", sources, "mine.near_copies=null"))
    planted = own_copies(plain)
    assert measure(plain).near_copies is None
    screened = nextlong.run(recipe_for(tmp_path / "run", sources, "mine.near_copies=0.8"))
    left = own_copies(screened)
    assert planted > 20
    assert left <= planted // 20
    assert measure(screened).near_copies >= planted - left
    assert "near-copies among negatives" not in breaches(tmp_path / "run")


def test_no_negative_is_nearer_than_max_similarity(recipe_for, tmp_path):
    run = nextlong.run(recipe_for(tmp_path / "run", "mine.max_similarity=0.7"))
    assert max(s.score for sequence in run.sequences() for s in sequence.spans if s.role == "negative") <= 0.7


def test_of_nearly_equal_documents_one_stays(recipe_for, small_corpus, tmp_path):
    pytest.importorskip("rensa")
    rows = [row for row in rows_of(small_corpus) if len(row["text"]) > 500]
    # With one word in a hundred changed, a document keeps about 95 % of its five-word runs.
    near = [row | {"id": f"{row['id']}-copy", "text": row["text"] + " other"} for row in rows]
    recipe = recipe_for(tmp_path / "run", write(tmp_path / "corpus", [*rows, *near]), "ingest.dedup=minhash")
    done = pipeline.run(recipe)
    told = dict(summary.lines(recipe, done))["documents"]
    assert total(done["near_duplicates"], "near_duplicates") >= len(rows)
    assert "near-duplicates" in told
    kept = total(done["chunk"], "documents")
    assert told.startswith(f"{kept:,} kept of {2 * len(rows):,}")
    assert kept <= len(rows)
    assert breaches(tmp_path / "run") == {}


@pytest.fixture(scope="module")
def contaminated(recipe_for, small_corpus, tmp_path_factory):
    """A recipe whose corpus holds a question in the middle of three documents and alone in a fourth, and a clean run of it."""
    tmp_path = tmp_path_factory.mktemp("contaminated")
    rows = [row for row in rows_of(small_corpus) if len(row["text"]) > 600]
    for row in rows[:3]:
        lines = row["text"].split("\n")
        row["text"] = "\n".join([*lines[:3], QUESTION, *lines[3:]])
    sources = write(tmp_path / "corpus", [*rows, {"id": "alone", "text": QUESTION}])
    (tmp_path / "eval.jsonl").write_text(json.dumps({"question": QUESTION}) + "\n")
    return recipe_for(tmp_path / "run", sources, f"decontaminate=[{tmp_path / 'eval.jsonl'}]", "compose.sequences=all")


def test_chunks_with_evaluation_text_are_nowhere(contaminated):
    (evaluation,) = contaminated.decontaminate.files
    run = nextlong.run(contaminated)
    assert not any("brass telescope" in sequence.text for sequence in run.sequences())
    assert measure(run).contaminated == {evaluation: 4}
    told = dict(summary.lines(run.recipe, run.steps))["contaminated"]
    assert told == f"4 chunks left out (4 of them with {evaluation})"
    assert breaches(Path(contaminated.run_dir)) == {}


def test_a_document_that_lost_a_chunk_is_no_meta_document(contaminated):
    run = nextlong.run(contaminated)
    clean = nextlong.run(contaminated.model_copy(update={"decontaminate": Decontaminate()}))
    metas = [
        {s.source_id for sequence in found.sequences() for s in sequence.spans if s.role == "meta"}
        for found in (run, clean)
    ]
    assert len(metas[1] - metas[0]) >= 3
    assert metas[0] < metas[1]


@pytest.mark.parametrize("method", ["standard", "knn", "iclm", "quest"])
def test_other_methods_never_see_them_either(contaminated, method):
    changed = {"method": method, "sequences": 3}
    compose = contaminated.compose.model_copy(update=changed)
    run = nextlong.run(contaminated.model_copy(update={"compose": compose}))
    assert len(run) > 0
    assert not any("brass telescope" in sequence.text for sequence in run.sequences())


def test_an_evaluation_file_that_changed_is_read_again(contaminated, tmp_path):
    evaluation = tmp_path / "eval.jsonl"
    recipe = contaminated.model_copy(update={"decontaminate": Decontaminate(files=(str(evaluation),))})
    evaluation.write_text(json.dumps({"question": QUESTION}))
    first = pipeline.run(recipe)
    evaluation.write_text(json.dumps({"question": "Nothing of this kind stands in any document here."}))
    second = pipeline.run(recipe)
    assert first["eval_ngrams"].folder != second["eval_ngrams"].folder
    assert total(first["contaminated"], "contaminated") == 4
    assert total(second["contaminated"], "contaminated") == 0


def test_an_evaluation_file_that_is_missing_is_told_before_anything_runs(contaminated, tmp_path):
    missing = Decontaminate(files=(str(tmp_path / "eval.jsonl"),))
    changed = {"run_dir": str(tmp_path / "run"), "decontaminate": missing}
    with pytest.raises(
        CorpusError, match=r"decontaminate: .*eval\.jsonl does not exist; correct the path or remove it"
    ):
        pipeline.run(contaminated.model_copy(update=changed))
    assert not [*(tmp_path / "run").glob("[0-9]*")]
