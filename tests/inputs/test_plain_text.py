"""Plain text: a file, a document."""

import gzip

from files_read import read
from nextlong.inputs.record import Record, Reject, RejectKind


def test_plain_text_is_one_document_a_file(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\ntwo\r\n")
    (tmp_path / "sub" / "b.md.gz").write_bytes(gzip.compress(b"# three"))
    (tmp_path / "sub" / "c.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "sub" / "d.txt").write_bytes(b"x" * 4004)
    assert read(tmp_path) == [
        Record("one\ntwo\r\n", "a.txt", 1),
        Record("# three", "sub/b.md.gz", 1),
        Reject("sub/c.txt", 1, "invalid UTF-8"),
        Reject("sub/d.txt", 1, RejectKind.TOO_LONG, "over 1,000 characters"),
    ]
