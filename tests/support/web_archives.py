"""Web archives made by hand: pages, records and HTTP responses."""

import gzip

PROSE = "The tide comes in twice a day, and the harbour fills with boats that waited outside for the water to rise. "


def page_of(text, *, head=""):
    """Return an HTML page whose main content is a text."""
    article = f"<article><h1>Tides</h1><p>{text}</p></article>"
    return f"<html><head>{head}<title>T</title></head><body><main>{article}</main></body></html>"


def record(kind, url, block, content_type, *, length=None, version="1.0"):
    """Return one record as ISO 28500 has it; `length` is a wrong one."""
    head = [
        f"WARC/{version}", f"WARC-Type: {kind}", f"WARC-Record-ID: <urn:uuid:{url[-1] * 4}>",
        "WARC-Date: 2024-05-01T00:00:00Z", f"WARC-Target-URI: {url}", f"Content-Type: {content_type}",
        f"Content-Length: {len(block) if length is None else length}",
    ]  # fmt: skip
    return "\r\n".join([*head, "", ""]).encode() + block + b"\r\n\r\n"


def response(
    url,
    body,
    *,
    status="HTTP/1.1 200 OK",
    headers=("Content-Type: text/html; charset=utf-8",),
    line_end="\r\n",
    **options,
):
    """Return the record of an HTTP response."""
    head = line_end.join([status, *headers, "", ""]).encode()
    kind = "application/http; msgtype=response"
    return record("response", url, head + body, kind, **options)


def joined(records):
    return b"".join(records)


def in_members(records):
    """Return records as most crawlers compress them: a gzip member for each."""
    return b"".join(map(gzip.compress, records))


def in_one_member(records):
    return gzip.compress(b"".join(records))
