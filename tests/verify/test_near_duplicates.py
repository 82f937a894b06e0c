"""Near-duplicates in a finished run: a sound one passes, and every planted fault is found."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

import nextlong
from damage import change_array, change_sequence, files, first_sequence, outcomes, rehash, spans_of
from nextlong.schemas import META, NEGATIVE
from nextlong.verify import near_duplicates
from nextlong.verify.checks import verify
from nextlong.verify.run_files import StoredRun

COPIES, WEIGHTS, NEAREST = (
    "near-duplicates among negatives",
    "word weights counted again",
    "negatives are the nearest unused",
)


@pytest.fixture(scope="module")
def finished(recipe_for, small_corpus, tmp_path_factory):
    """A run over a corpus of which every document stands there again, one word changed; read-only."""
    folder = tmp_path_factory.mktemp("copies")
    rows = [json.loads(line) for path in sorted(small_corpus.iterdir()) for line in path.read_text().splitlines()]
    copies = [
        row | {"id": f"{row['id']}-copy", "text": row["text"].replace(" the ", " thy ", 1) + " x"} for row in rows
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, *copies]))
    source = json.dumps([{"path": str(folder / "rows.jsonl"), "name": "copies"}])
    nextlong.run(
        recipe_for(
            folder / "run",
            f"ingest.sources={source}",
            "compose.sequences=4",
            "compose.target_tokens=1024",
            "compose.min_meta_chunks=3",
            "export.formats=[parquet]",
        )
    )
    return folder / "run"


def found(run, name):
    """Return what the checks of one group say of each breach."""
    checked = outcomes(run, name, sample=100_000)
    return {check: outcome.examples for check, outcome in checked.items() if outcome.breaches}


def test_chunks_too_short_for_a_run_of_words_weigh_nothing_and_pass(recipe_for, tmp_path):
    nextlong.run(recipe_for(tmp_path / "run", "chunk.max_chars=24", "compose.sequences=2", "compose.target_tokens=256"))
    assert {outcome.check: outcome.examples for outcome in verify(tmp_path / "run") if outcome.breaches} == {}


def copies_of_metas(run):
    """Return the chunks of the first sequence's meta-document, and those of its copy."""
    artefacts = StoredRun(run)
    (block,) = artefacts.blocks()
    meta = int(block[0].doc[spans_of(first_sequence(run), META)[0]])
    documents = np.concatenate(
        [
            np.unique(artefacts.chunks(shard)["doc_row"]).astype(np.int64) | shard << 32
            for shard in range(len(artefacts.shards))
        ]
    )
    names = artefacts.names_of(documents, "source_id")
    other = names[meta].removesuffix("-copy") if names[meta].endswith("-copy") else names[meta] + "-copy"
    (copy,) = (doc for doc, name in names.items() if name == other)
    shard = copy >> 32
    rows = np.flatnonzero(artefacts.chunks(shard)["doc_row"] == copy & 0xFFFFFFFF)
    return (rows | shard << 32).tolist()


def test_a_sound_run_passes(finished):
    outcomes = {outcome.check: outcome for outcome in verify(finished, sample=100_000)}
    assert {name: own.examples for name, own in outcomes.items() if own.breaches} == {}
    assert outcomes[COPIES].checked > 20
    assert outcomes[WEIGHTS].checked == 1 << 22
    assert not outcomes[NEAREST].not_needed


def test_a_copy_of_the_meta_document_that_was_placed(run):
    copies = copies_of_metas(run)
    span = spans_of(first_sequence(run), NEGATIVE)[1]
    change_sequence(run, lambda row: row["chunk_id"].__setitem__(span, copies[0]))
    assert any("the meta-document" in problem for problem in found(run, "near-duplicates")[COPIES])


def test_a_copy_of_another_negative_that_was_placed(run):
    first, second = spans_of(first_sequence(run), NEGATIVE)[:2]
    change_sequence(run, lambda row: row["chunk_id"].__setitem__(second, row["chunk_id"][first]))
    assert any(f"span {second}" in problem for problem in found(run, "near-duplicates")[COPIES])


def test_a_chunk_that_was_passed_over_without_cause(run):
    row = first_sequence(run)
    negatives = spans_of(row, NEGATIVE)
    of_group = [[span for span in negatives if row["group"][span] == group] for group in set(row["group"])]
    nearest, *others = max(of_group, key=len)
    assert others
    far = next(chunk for chunk in range(100) if chunk not in row["chunk_id"])
    change_sequence(run, lambda row: row["chunk_id"].__setitem__(nearest, far))
    assert any("is unused and nearer to meta-chunk" in problem for problem in found(run, "search")[NEAREST])


@pytest.mark.parametrize("weight", [1, 512])
def test_a_weight_that_was_altered(run, weight):
    (path,) = files(run, "weights", ".weights.npy")
    change_array(path, lambda weights: weights.__setitem__(7, weight))
    assert found(run, "weights")[WEIGHTS] == [
        f"slot 7 has the weight {weight}, its word runs are in 0 documents, which gives 1024"
    ]


def test_a_document_that_was_not_counted(run):
    (path,) = files(run, "weights", ".counted.npy")
    np.save(path, np.load(path)[1:])
    rehash(path)
    assert any("519 documents are counted of 520" in problem for problem in found(run, "weights")[WEIGHTS])


def test_what_a_sequence_shows_of_its_cut_negative_is_judged(finished, monkeypatch):
    row = first_sequence(finished)
    artefacts = StoredRun(finished)
    metas = np.array([row["chunk_id"][span] for span in spans_of(row, META)])
    texts = artefacts.texts_of(metas)
    shown = SimpleNamespace(visible=lambda _: "".join(texts[chunk] for chunk in metas.tolist()))
    monkeypatch.setattr(
        near_duplicates,
        "texts_of_cuts",
        lambda _, block: dict.fromkeys(np.concatenate([one.chunk for one in block]).tolist(), shown),
    )
    assert any(
        ", as cut," in problem and "the meta-document" in problem
        for problem in found(finished, "near-duplicates")[COPIES]
    )
