import numpy as np
import pyarrow as pa
import pytest

from damage import breaches, change_array, change_recipe, change_rows, document_name, files, read_batches, rehash


def test_an_altered_document(run):
    def alter(rows):
        rows[0]["text"] = "Z" + rows[0]["text"][1:]

    change_rows(files(run, "ingest", ".documents.arrow")[0], alter)
    assert f"document {document_name(run, 0)} has the hash" in breaches(run, "documents and chunks")["documents"]


@pytest.mark.parametrize("place", [".hashes.npy", ".documents.arrow"])
def test_a_hash_that_is_right_in_one_of_its_two_places(run, place):
    def alter(stored):
        if place == ".hashes.npy":
            stored[0] ^= np.uint64(1)
        else:
            stored[0]["content_hash"] ^= 1

    change = change_array if place == ".hashes.npy" else change_rows
    change(files(run, "ingest", place)[0], alter)
    assert f"document {document_name(run, 0)} has the hash" in breaches(run, "documents and chunks")["documents"]


@pytest.mark.parametrize(("asked", "is_right"), [("lang", True), ("year", False)])
def test_documents_keep_the_columns_of_the_names_asked_for(run, asked, is_right):
    for path in files(run, "ingest", ".documents.arrow"):
        table = pa.Table.from_batches(read_batches(path)[0])
        table = table.append_column("metadata", pa.array(['{"lang": 1}'] * len(table)))
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
        rehash(path)
    change_recipe(run, "ingest", "sources", [{"path": "x", "name": "small", "metadata": [asked]}])
    said = breaches(run, "documents and chunks").get("documents", "")
    assert said == "" if is_right else "keeps ['lang'] of small, the recipe asks for ['year']" in said


def test_two_kept_documents_with_one_text(run):
    """A hash that is made again from the text, and so is right, may still be another document's."""
    path = files(run, "ingest", ".documents.arrow")[0]
    hashes_path = files(run, "ingest", ".hashes.npy")[0]
    kept = np.flatnonzero(np.load(files(run, "select", ".keep.npy")[0]))[:2].tolist()
    hashes = np.load(hashes_path)
    hashes[kept[1]] = hashes[kept[0]]
    np.save(hashes_path, hashes)

    def alter(rows):
        rows[kept[1]].update({name: rows[kept[0]][name] for name in ("text", "content_hash")})

    change_rows(path, alter)
    said = breaches(run, "documents and chunks")["no duplicate documents"]
    names = " and ".join(document_name(run, row) for row in kept)
    assert f"documents {names} are both kept, but are duplicates" in said


def test_chunks_with_a_gap(run):
    def alter(rows):
        rows[0]["end"] -= 1

    change_rows(files(run, "chunk", ".chunks.arrow")[0], alter)
    assert f"document {document_name(run, 0)}: " in breaches(run, "documents and chunks")["chunks tile documents"]
