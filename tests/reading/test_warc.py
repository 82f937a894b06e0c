"""Records of web archives that are no page, are broken, or are written in unusual ways."""

import gzip
import zlib

import brotli
import pytest
import zstandard
from tests.support.web_archives import (
    PROSE,
    in_members,
    in_one_member,
    joined,
    page_of,
    record,
    response,
)

from nextlong.errors import CorpusError
from nextlong.reading import http_response
from nextlong.reading.files import FilePart
from nextlong.reading.formats import read_records
from nextlong.reading.listing import list_files
from nextlong.reading.records import Record, Reject, RejectKind, Skip
from nextlong.recipe import Source

HTML = page_of(PROSE * 3).encode()
TEXT = f"Tides\n\n{PROSE * 3}".strip()
BEFORE = response("http://a/1", page_of(f"First. {PROSE * 3}").encode())
AFTER = response("http://a/9", page_of(f"Last. {PROSE * 3}").encode())
TYPE = "Content-Type: text/html"


def read(path, content, **options):
    path.write_bytes(content)
    source = Source(path=str(path), name="w", **options)
    (file,) = list_files(source, where="path")
    return list(read_records(FilePart(file), source, max_document_chars=10_000))


def between(path, middle):
    """Read an archive with a record between two others; return the middle item."""
    first, item, last = read(path, BEFORE + middle + AFTER)
    assert (first.source_id, first.line) == ("http://a/1", 1)
    assert (last.source_id, last.line) == ("http://a/9", 3)
    assert item.line == 2
    return item


def with_coding(body, *codings, name="Content-Encoding"):
    return response("http://a/2", body, headers=[TYPE, f"{name}: {', '.join(codings)}"])


def chunked(body, *, size=100):
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
    return b"".join([*chunks, b"0\r\n\r\n"])


def raw_deflate(body):
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(body) + compressor.flush()


WHOLE = f"Content-Range: bytes 0-{len(HTML) - 1}/{len(HTML)}"
ENCODED = {
    "gzip": with_coding(gzip.compress(HTML), "gzip"),
    "gzip in two members": with_coding(
        gzip.compress(HTML[:50]) + gzip.compress(HTML[50:]), "x-gzip"
    ),
    "deflate": with_coding(zlib.compress(HTML), "deflate"),
    "deflate without a header": with_coding(raw_deflate(HTML), "deflate"),
    "brotli": with_coding(brotli.compress(HTML), "br"),
    "zstd": with_coding(zstandard.compress(HTML), "zstd"),
    "two codings": with_coding(brotli.compress(gzip.compress(HTML)), "gzip", "br"),
    "chunked": with_coding(chunked(HTML), "chunked", name="Transfer-Encoding"),
    "chunks with extensions": with_coding(
        chunked(HTML).replace(b"64\r\n", b"64;name=value\r\n"),
        "chunked",
        name="Transfer-Encoding",
    ),
    "chunked gzip": response(
        "http://a/2",
        chunked(gzip.compress(HTML)),
        headers=[TYPE, "Content-Encoding: gzip", "Transfer-Encoding: chunked"],
    ),
    "gzip that is no longer chunked": response(
        "http://a/2",
        gzip.compress(HTML),
        headers=[TYPE, "Content-Encoding: gzip", "Transfer-Encoding: chunked"],
    ),
    "no longer chunked": with_coding(HTML, "chunked", name="Transfer-Encoding"),
    "no longer gzip": with_coding(HTML, "gzip"),
    "no longer brotli": with_coding(HTML, "br"),
    "no longer deflate": with_coding(HTML, "deflate"),
    "an unknown coding of a page as it is": with_coding(HTML, "utf-8"),
}


@pytest.mark.parametrize("middle", ENCODED.values(), ids=ENCODED.keys())
def test_a_body_is_decoded_or_taken_as_it_stands(tmp_path, middle):
    assert between(tmp_path / "a.warc", middle).text == TEXT


UNUSUAL = {
    "header lines that end in LF": response("http://a/2", HTML, line_end="\n"),
    "mixed line ends": response(
        "http://a/2", HTML, headers=[f"{TYPE}\nServer: x", "Date: y\n"]
    ),
    "no content type": response("http://a/2", HTML, headers=[]),
    "no content type after an XML declaration": response(
        "http://a/2", b'<?xml version="1.0"?>\n' + HTML, headers=["Server: x"]
    ),
    "an unknown content type": response(
        "http://a/2", HTML, headers=["Content-Type: unknown/unknown"]
    ),
    "a content type that is none": response(
        "http://a/2", HTML, headers=["Content-Type: html"]
    ),
    "XHTML": response(
        "http://a/2", HTML, headers=["Content-Type: application/xhtml+xml"]
    ),
    "HTTP 2": response("http://a/2", HTML, status="HTTP/2 200 "),
    "a server of streams": response("http://a/2", HTML, status="ICY 200 OK"),
    "after an interim response": response(
        "http://a/2", HTML, status="HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK"
    ),
    "from a cache": response(
        "http://a/2", HTML, status="HTTP/1.1 203 Non-Authoritative"
    ),
    "all of the page as its part": response(
        "http://a/2", HTML, status="HTTP/1.1 206 Partial", headers=[TYPE, WHOLE]
    ),
    "a folded header": response(
        "http://a/2", HTML, headers=["Content-Type:", "  text/html"]
    ),
    "WARC 1.1": response("http://a/2", HTML, version="1.1"),
    "a resource": record("resource", "http://a/2", HTML, "text/html"),
    "the URL in brackets": response("<http://a/2>", HTML),
    "a length with the blank lines after it": response(
        "http://a/2", HTML, length=len(f"HTTP/1.1 200 OK\r\n{TYPE}\r\n\r\n") + len(HTML)
    ).replace(b"; charset=utf-8", b""),
}  # fmt: skip


@pytest.mark.parametrize("middle", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_what_browsers_accept_is_a_page(tmp_path, middle):
    item = between(tmp_path / "a.warc", middle)
    assert (item.text, item.source_id) == (TEXT, "http://a/2")


SKIPPED = {
    "HTTP status 404": response("http://a/2", HTML, status="HTTP/1.1 404 Not Found"),
    "HTTP status 304": response("http://a/2", b"", status="HTTP/2 304"),
    "HTTP status 206": response(
        "http://a/2",
        HTML,
        status="HTTP/1.1 206 Partial",
        headers=[TYPE, "Content-Range: bytes 0-99/9000"],
    ),
    "request record": record(
        "request", "http://a/2", b"GET / HTTP/1.1\r\n\r\n", "application/http"
    ),
    "warcinfo record": record(
        "warcinfo", "http://a/2", b"software: x\r\n", "application/warc-fields"
    ),
    "revisit record": record(
        "revisit", "http://a/2", b"HTTP/1.1 200 OK\r\n\r\n", "application/http"
    ),
    "unknown record": record("other", "http://a/2", HTML, "text/html"),
    "content type image/*": response(
        "http://a/2", b"\x89PNG", headers=["Content-Type: image/png"]
    ),
    "content type text/plain": response(
        "http://a/2", b"as it is", headers=["Content-Type: text/plain"]
    ),
    "content type application/pdf": record(
        "resource", "http://a/2", b"%PDF-1.7", "application/pdf"
    ),
    "unknown content type": response("http://a/2", b"\x00\x01", headers=[]),
    "empty page": response("http://a/2", b""),
    "page without text": response("http://a/2", b"<html><script>1</script></html>"),
}


@pytest.mark.parametrize("reason", SKIPPED)
def test_a_record_that_is_no_page_is_skipped_with_its_reason(tmp_path, reason):
    item = between(tmp_path / "a.warc", SKIPPED[reason])
    assert item == Skip("a.warc", 2, reason)


LENGTH = len(HTML) + len(f"HTTP/1.1 200 OK\r\n{TYPE}; charset=utf-8\r\n\r\n")
BROKEN = {
    "truncated gzip": (
        RejectKind.BROKEN_RESPONSE,
        with_coding(gzip.compress(HTML)[:-20], "gzip"),
    ),
    "gzip with another checksum": (
        RejectKind.BROKEN_RESPONSE,
        with_coding(gzip.compress(HTML)[:-8] + b"\0" * 8, "gzip"),
    ),
    "no gzip and no page": (
        RejectKind.BROKEN_RESPONSE,
        with_coding(b"\x00\x01\x02 body", "gzip"),
    ),
    "truncated deflate": (
        RejectKind.BROKEN_RESPONSE,
        with_coding(zlib.compress(HTML)[:-9], "deflate"),
    ),
    "truncated brotli": (
        RejectKind.BROKEN_RESPONSE,
        with_coding(brotli.compress(HTML)[:-9], "br"),
    ),
    "truncated zstd": (
        RejectKind.BROKEN_RESPONSE,
        with_coding(zstandard.compress(HTML)[:-9], "zstd"),
    ),
    "a truncated chunk": (
        RejectKind.BROKEN_RESPONSE,
        with_coding(chunked(HTML)[:-60], "chunked", name="Transfer-Encoding"),
    ),
    "an unknown coding": (
        RejectKind.BROKEN_RESPONSE,
        with_coding(b"\x1f\x9d\x90", "compress"),
    ),
    "no HTTP header": (
        RejectKind.BROKEN_RESPONSE,
        record("response", "http://a/2", HTML, "application/http"),
    ),
    "an HTTP header without an end": (
        RejectKind.BROKEN_RESPONSE,
        record(
            "response", "http://a/2", b"HTTP/1.1 200 OK\r\n" + HTML, "application/http"
        ),
    ),
    "a bomb": (
        RejectKind.TOO_LONG,
        with_coding(gzip.compress(b" " * 1_000_000), "gzip"),
    ),
    "a bomb of brotli": (
        RejectKind.TOO_LONG,
        with_coding(brotli.compress(b" " * 1_000_000), "br"),
    ),
    "a bomb of zstd": (
        RejectKind.TOO_LONG,
        with_coding(zstandard.compress(b" " * 1_000_000), "zstd"),
    ),
    "a page that is too long": (
        RejectKind.TOO_LONG,
        response("http://a/2", HTML + b" " * 300_000),
    ),
    "a length that is too small": (
        RejectKind.BROKEN_RECORD,
        response("http://a/2", HTML, length=LENGTH - 20),
    ),
    "a length that includes the next record": (
        RejectKind.BROKEN_RECORD,
        response("http://a/2", HTML, length=LENGTH + 300),
    ),
    "a length beyond the file": (
        RejectKind.BROKEN_RECORD,
        response("http://a/2", HTML, length=100_000),
    ),
    "a negative length": (
        RejectKind.BROKEN_RECORD,
        response("http://a/2", HTML, length=-1),
    ),
    "a length that is no number": (
        RejectKind.BROKEN_RECORD,
        response("http://a/2", HTML, length="many"),
    ),
    "a broken version": (
        RejectKind.BROKEN_RECORD,
        response("http://a/2", HTML).replace(b"WARC/1.0", b"W\0RC/1.0"),
    ),
}


@pytest.mark.parametrize(("kind", "middle"), BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize(
    ("name", "archived"),
    [("a.warc", joined), ("a.warc.gz", in_members), ("b.warc.gz", in_one_member)],
)
def test_a_broken_record_is_one_reject(tmp_path, name, archived, kind, middle):
    items = read(tmp_path / name, archived([BEFORE, middle, AFTER]))
    first, item, last = items
    assert (first.line, last.line) == (1, 3)
    assert isinstance(first, Record)
    assert last.text.startswith("Tides\n\nLast.")
    assert isinstance(item, Reject)
    assert (item.file, item.line, item.kind) == (name, 2, kind)
    # The reason never repeats the page.
    assert len(item.reason) < 100
    assert "harbour" not in item.reason


def test_a_video_longer_than_a_page_may_be_is_skipped_unread(tmp_path):
    video = response(
        "http://a/2", b"\0" * 2_000_000, headers=["Content-Type: video/mp4"]
    )
    item = between(tmp_path / "a.warc", video)
    assert item.reason.endswith(" video/*")


@pytest.mark.parametrize("cut", [2, 30, 700])
def test_an_archive_that_ends_early_is_refused(tmp_path, cut):
    with pytest.raises(CorpusError, match="incomplete"):
        read(tmp_path / "a.warc", (BEFORE + AFTER)[:-cut])


def test_an_archive_may_contain_another_one(tmp_path):
    inner = record("resource", "http://a/2", BEFORE + AFTER, "application/warc")
    item = between(tmp_path / "a.warc", inner)
    assert isinstance(item, Skip)
    assert item.reason.endswith(" application/warc")


def test_a_text_of_a_crawl_in_another_encoding_is_decoded(tmp_path):
    text = "Größe über alles, und die Straße führt zum Hafen. " * 3
    block = text.encode("latin-1")
    archive = record("conversion", "http://a/2", block, "text/plain")
    (item,) = read(tmp_path / "a.wet", archive)
    assert item.text == text


def test_thousands_of_interim_responses_precede_a_page(tmp_path):
    status = "HTTP/1.1 100 Continue\r\n\r\n" * 3_000 + "HTTP/1.1 200 OK"
    middle = response("http://a/2", HTML, status=status)
    item = between(tmp_path / "a.warc", middle)
    assert (item.source_id, item.text) == ("http://a/2", TEXT)


def test_the_members_of_a_gzip_bomb_are_not_all_decompressed():
    members = gzip.compress(b"a" * 900) * 50
    assert len(http_response._from_gzip(members, 1_000)) <= 2_001
