import numpy as np

from damage import breaches, change_rows, document_name, files


def test_an_altered_document(run):
    def alter(rows):
        rows[0]["text"] = "Z" + rows[0]["text"][1:]

    change_rows(files(run, "ingest", ".documents.arrow")[0], alter)
    assert f"document {document_name(run, 0)} has the hash" in breaches(run, "documents and chunks")["documents"]


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
