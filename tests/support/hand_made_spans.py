"""Spans of two small sequences, written by hand, and a text that does its worst."""

import math

from nextlong.schemas import Span

NAN = math.nan
HOSTILE = "</title></svg><script>alert(1)</script><img src=x onerror=alert(2)>&\"'`$\\frac{1}$\u202e日本 \x1b[31m"


def span(role, chunk, doc, start, end, *, group=0, score=NAN, source="s"):
    return Span(chunk, doc, source, {}, 0, end - start, role, group, start, end, score)


EXTENDED = [
    span("bos", -1, -1, 0, 1),
    span("meta", 10, 1, 1, 101, group=0, score=1.0),
    span("negative", 70, 7, 101, 201, group=0, score=0.5),
    span("separator", -1, -1, 201, 202),
    span("meta", 11, 1, 202, 302, group=1, score=1.0),
    span("negative", 80, 8, 302, 402, group=1, score=0.25),
]
DOCUMENTS = [
    span("document", 3, 0, 0, 10, group=0),
    span("document", 4, 0, 10, 20, group=0),
    span("document", 9, 2, 20, 30, group=1, score=0.75),
]
