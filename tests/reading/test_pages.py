"""Web archives, HTML pages and plain text."""

import gzip

import pytest
from tests.support.files_read import read as read_folder
from tests.support.web_archives import PROSE, in_members, joined, record, response

from nextlong.errors import CorpusError
from nextlong.reading.files import FilePart
from nextlong.reading.formats import estimate_text_bytes, read_records
from nextlong.reading.listing import list_files
from nextlong.reading.records import Record, Reject, RejectKind
from nextlong.recipe import Source

PAGE = f"""<html><head><title>The tide</title></head><body>
<nav><a href="/">Home</a> <a href="/about">About</a> <a href="/help">Help</a></nav>
<main><article><h1>Tides</h1><p>{PROSE * 3}</p><p>{PROSE}Größe.</p></article></main>
<footer>Copyright</footer><script>var hidden = 1;</script></body></html>"""


ARCHIVE = [
    response("http://a/1", PAGE.encode()),
    response("http://a/2", b"gone", status="HTTP/1.1 404 Not Found"),
    response("http://a/3", b"\x89PNG", headers=["Content-Type: image/png"]),
    response("http://a/4", b"<html><body><script>1</script></body></html>"),
    response(
        "http://a/5",
        PAGE.encode("latin-1"),
        headers=["Content-Type: text/html; charset=iso-8859-1"],
    ),
    record(
        "conversion", "http://a/6", f"{PROSE}A text as it is.".encode(), "text/plain"
    ),
]


def read(path, **options):
    source = Source(path=str(path), name="w", **options)
    (file,) = list_files(source, where="path")
    return list(read_records(FilePart(file), source, max_document_chars=10_000))


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("a.warc", joined),
        ("a.warc.gz", in_members),
    ],
)
def test_pages_of_an_archive(tmp_path, name, compress):
    (tmp_path / name).write_bytes(compress(ARCHIVE))
    columns = ["title", "language", "date", "url", "content_type"]
    items = read(tmp_path / name, metadata=columns)
    first, second, third = [item for item in items if isinstance(item, Record)]
    assert (first.source_id, first.line) == ("http://a/1", 1)
    assert first.text.count(PROSE.strip()) == 4
    assert "Größe." in first.text
    assert not any(word in first.text for word in ("About", "Copyright", "hidden"))
    assert first.values == (
        "The tide",
        "en",
        "2024-05-01T00:00:00Z",
        "http://a/1",
        "text/html",
    )
    assert second.text == first.text
    assert (third.text, third.source_id) == (f"{PROSE}A text as it is.", "http://a/6")


def test_a_text_archive_of_a_crawl_is_known_by_its_name(tmp_path):
    (tmp_path / "CC.warc.wet.gz").write_bytes(gzip.compress(ARCHIVE[-1]))
    (only,) = read(tmp_path / "CC.warc.wet.gz", id="record_id", metadata="language")
    assert (only.source_id, only.values) == ("<urn:uuid:6666>", ("en",))


def test_where_chooses_by_what_is_known_of_a_page(tmp_path):
    (tmp_path / "a.warc").write_bytes(b"".join(ARCHIVE))
    items = read(tmp_path / "a.warc", filter="language = 'en' AND url LIKE '%/5'")
    assert [item.source_id for item in items if isinstance(item, Record)] == [
        "http://a/5"
    ]


@pytest.mark.parametrize("name", ["page.html", "page.htm", "page.html.gz"])
def test_a_file_of_html_is_a_page(tmp_path, name):
    (tmp_path / name).write_bytes(
        gzip.compress(PAGE.encode()) if name.endswith("gz") else PAGE.encode()
    )
    (page,) = read(tmp_path / name, metadata=["title"])
    assert (page.source_id, page.values) == (name, ("The tide",))
    assert page.text.count(PROSE.strip()) == 4


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        (
            "a.warc",
            b"no archive\n" * 9,
            {},
            "is truncated or damaged (it does not begin with a WARC record)",
        ),
        (
            "a.warc.gz",
            gzip.compress(b"".join(ARCHIVE))[:300],
            {},
            "is truncated or damaged",
        ),
        (
            "a.warc",
            b"".join(ARCHIVE)[:-20],
            {},
            "is truncated or damaged (its last record is incomplete)",
        ),
        (
            "a.warc",
            ARCHIVE[0],
            {"metadata": ["lang"]},
            "has no column 'lang' that metadata or filter names, only url, record_id",
        ),
        (
            "a.html",
            b"<p>x",
            {"filter": "url = 'x'"},
            "has no column 'url' that metadata or filter names, only title, language",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path, name, content, options, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError) as caught:
        read(tmp_path / name, **options)
    assert message in str(caught.value)


def test_the_size_of_the_text_is_estimated_without_the_markup(tmp_path):
    (tmp_path / "a.warc.gz").write_bytes(b"".join(map(gzip.compress, ARCHIVE[:1] * 50)))
    source = Source(path=str(tmp_path / "a.warc.gz"))
    items = read(tmp_path / "a.warc.gz")
    text_bytes = sum(len(item.text.encode()) for item in items)
    assert estimate_text_bytes(
        list_files(source, where="path"), source
    ) == pytest.approx(text_bytes, rel=0.05)


def test_plain_text_is_one_document_a_file(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\ntwo\r\n")
    (tmp_path / "sub" / "b.md.gz").write_bytes(gzip.compress(b"# three"))
    (tmp_path / "sub" / "c.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "sub" / "d.txt").write_bytes(b"x" * 4004)
    assert read_folder(tmp_path) == [
        Record("one\ntwo\r\n", "a.txt", 1),
        Record("# three", "sub/b.md.gz", 1),
        Reject(
            "sub/c.txt",
            1,
            RejectKind.NOT_TEXT,
            "text in utf-16; set its source's encoding: utf-16",
        ),
        Reject("sub/d.txt", 1, RejectKind.TOO_LONG, "over 1,000 characters"),
    ]
