"""Names of chunks and documents in examples; `damage.outcomes` asserts that no check of a damaged run says an internal id."""

from damage import chunk_name as told
from damage import document_name as told_document
from damage import files
from nextlong.schemas import NO_CHUNK, SHARD_BITS
from nextlong.verify.artefacts import Artefacts
from nextlong.verify.marks import chunk_name, document_name
from nextlong.verify.named import with_names
from nextlong.verify.outcome import Outcome


def said(run, example):
    outcome = Outcome("check", "things")
    outcome.breach(example)
    (named,) = with_names(Artefacts(run), [outcome])
    (example,) = named.examples
    return example


def test_a_mark_becomes_the_name_whatever_its_shard(finished):
    shard = len(files(finished, "chunk", ".chunks.arrow")) - 1
    assert shard > 0
    for chunk in (3, (shard << SHARD_BITS) + 4):
        assert said(finished, f"{chunk_name(chunk)} is long") == f"{told(finished, chunk)} is long"
    wanted = told_document(finished, 2, shard=shard)
    assert said(finished, f"document {document_name((shard << SHARD_BITS) + 2)}") == f"document {wanted}"


def test_an_id_that_the_run_does_not_have_is_told_by_its_place(finished):
    assert said(finished, chunk_name(1 << 40)) == "unknown chunk (shard 256, row 0)"
    assert said(finished, chunk_name((1 << 32) - 1)) == "unknown chunk (shard 0, row 4,294,967,295)"
    assert said(finished, document_name(10**6)) == "unknown document (shard 0, row 1,000,000)"
    assert said(finished, chunk_name(NO_CHUNK)) == "no chunk"


def test_files_that_cannot_be_read_cost_the_name_only(finished, monkeypatch):
    monkeypatch.setattr(Artefacts, "names_of", lambda *_: (_ for _ in ()).throw(OSError("torn")))
    assert said(finished, chunk_name(3)) == "unknown chunk (shard 0, row 3)"
