"""What a finished run holds, from hand-made results and from the files of a small run; results come back from manifests as JSON,
also of versions that told less.
"""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import nextlong
from nextlong import pipeline, schemas
from nextlong.artifacts import results, sequence_files
from nextlong.artifacts.results import ComposeResult, DraftResult, TokenizerResult
from nextlong.artifacts.sequence_files import SequenceFiles, SpecialIds
from nextlong.engine.step import TaskResult
from nextlong.export.arrange import RowsResult, SplitResult


def composed(*parts):
    """A finished step of so many sequences a file, part by part."""
    results = [
        ComposeResult(
            sequences=sum(part),
            sequences_per_file=part,
            dropped={},
            longest_dropped_tokens=0,
        )
        for part in parts
    ]
    return SimpleNamespace(results=lambda kind: results)


@pytest.mark.parametrize(
    ("sequences", "take"),
    [
        ("all", [3, 0, 4]),
        (7, [3, 0, 4]),
        (9, [3, 0, 4]),
        (5, [3, 0, 2]),
        (3, [3, 0, 0]),
        (2, [2, 0, 0]),
    ],
)
def test_the_first_sequences_that_were_asked_for_belong_to_the_data_set(
    sequences, take
):
    assert results.sequences_per_part(sequences, composed((3, 0), (4,))) == take


def tokenizer(**ids):
    result = TokenizerResult(
        chars_per_token=4.0,
        measured_chunks=1,
        vocab_size=9,
        **{"bos_id": None, "eos_id": None, "separator_ids": (5, 6), **ids},
        special_texts=("\n\n", "", "<end>"),
    )
    return {"tokenizer": SimpleNamespace(result=lambda kind: result)}


def test_an_id_of_zero_is_put_between_chunks_and_none_is_not():
    assert sequence_files.special_ids(tokenizer(bos_id=0)) == SpecialIds(
        separator=(5, 6), bos=(0,), eos=()
    )
    assert sequence_files.special_ids(tokenizer(eos_id=7)) == SpecialIds(
        separator=(5, 6), bos=(), eos=(7,)
    )


def test_cleaned_chunks_are_read_where_there_are_any():
    assert results.chunks_of({"chunk": "all", "decontaminate": "cleaned"}) == "cleaned"
    assert results.chunks_of({"chunk": "all"}) == "all"


def test_tokens_and_references_are_those_of_the_sequences(shared_run):
    run = nextlong.open(shared_run)
    store = sequence_files.token_store(run.steps)
    whole = [
        (span, sequence.input_ids[span.token_start : span.token_end])
        for sequence in run.sequences()
        for span in sequence.spans
        if span.role == "meta"
    ]
    assert whole
    counts = store.counts(np.array([span.chunk_id for span, _ in whole]))
    assert counts.tolist() == [
        len(ids) for _, ids in whole
    ]  # of a meta-document nothing is cut
    files = SequenceFiles.of(run.steps, [2, 1])
    assert files.take == (2, 1)
    assert files.corpus_id == run.steps["chunk"].manifest["fingerprint"]
    assert list(files.sequences) == run.steps["compose"].files(".sequences.arrow")
    assert files.special_texts == {
        schemas.SEPARATOR: "\n",
        schemas.BOS: "",
        schemas.EOS: "",
    }


@pytest.fixture(scope="module")
def run(shared_run):
    return nextlong.open(shared_run)


def test_the_index_of_a_run_names_every_sequence(run):
    index = run.files.read_index(run=3)
    ids = [f"nextlong-{key:016x}" for key in index["key"].tolist()]
    assert ids == [sequence.id for sequence in run.sequences()]
    assert set(index["run"].tolist()) == {3}
    assert index["length"].tolist() == [2048] * 12
    places = [
        (part, place)
        for part, count in enumerate(run.sequences_per_part)
        for place in range(count)
    ]
    assert [(row["part"], row["place"]) for row in index] == places


def test_the_references_of_a_run_are_its_chunks(run):
    ids, offsets = run.files.chunk_ids()
    for number, sequence in enumerate(run.sequences()):
        expected = [span.chunk_id for span in sequence.spans if span.chunk_id != -1]
        assert ids[offsets[number] : offsets[number + 1]].tolist() == expected


def test_without_a_meta_document_the_key_is_the_first_documents_hash(
    recipe_for, own_run
):
    pipeline.run(
        recipe_for(own_run, "compose.method=standard", "export.formats=[jsonl]")
    )
    run = nextlong.open(own_run)
    hashes = [np.load(path) for path in run.steps["ingest"].files(".hashes.npy")]
    firsts = [
        next(span.doc_id for span in sequence.spans if span.doc_id >= 0)
        for sequence in run.sequences()
    ]
    index = run.files.read_index()
    assert index["key"].tolist() == [
        hashes[doc_id >> 32][doc_id & 0xFFFFFFFF] for doc_id in firsts
    ]


KINDS = [
    kind
    for kind in vars(results).values()
    if isinstance(kind, type) and issubclass(kind, TaskResult)
]
KINDS += [SplitResult, RowsResult]
NUMBERS = {float: st.floats(allow_nan=False, allow_infinity=False)}


def of_field(annotation):
    return NUMBERS.get(annotation, st.from_type(annotation))


@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_every_result_comes_back_from_a_manifest_as_it_was(data, kind):
    fields = {
        name: of_field(field.annotation) for name, field in kind.model_fields.items()
    }
    told = data.draw(st.builds(kind, **fields))
    assert (
        kind.model_validate(json.loads(json.dumps(told.model_dump(mode="json"))))
        == told
    )


def test_results_cannot_be_changed():
    told = SplitResult(rows=1, sequences=2, documents=3, tokens=4)
    with pytest.raises(ValidationError, match="frozen"):
        told.rows = 2


def test_what_a_later_version_adds_is_passed_over():
    assert DraftResult.model_validate(
        {"drafts": 3, "dropped": {}, "moods": [1]}
    ) == DraftResult(drafts=3, dropped={})
