"""The columns of text and ids are found by type, name and content, in invented records of many kinds."""

import base64
import csv
import hashlib
import json
import random

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.files_read import arrow_file

from nextlong.reading.choose_columns import choose_columns
from nextlong.reading.formats import sample_records
from nextlong.reading.listing import list_files
from nextlong.recipe import Source

WORDS = [
    "the",
    "harbour",
    "town",
    "has",
    "boats",
    "nets",
    "tide",
    "anchor",
    "sail",
    "wind",
    "light",
    "stone",
    "bread",
]
HAN = "港口的船只在清晨出海渔网晾在岸边潮水上涨风很大灯塔亮着"
LICENSE = "Permission is hereby granted, free of charge, to any person. " * 40


def prose(number, words=120):
    draw = random.Random(number)
    return f"Page {number}. " + " ".join(draw.choices(WORDS, k=words)) + "."


def han(number, characters=200):
    draw = random.Random(number)
    return "".join(draw.choices(HAN, k=characters)) + "。"


def digest(number):
    return hashlib.sha1(str(number).encode()).hexdigest()


def code(number):
    lines = [f"def f{number}_{line}(x):\n    return x + {line}" for line in range(20)]
    return "\n\n".join(lines)


def turns(number):
    return [
        {"role": "user", "content": prose(number, 12)},
        {"role": "assistant", "content": prose(number + 1, 80)},
    ]


def url(number):
    path = "/".join(digest(number + part) for part in range(5))
    return f"https://www.example.org/archive/{path}/page-{number}.html?session={digest(number)}"


def html(number):
    cells = "".join(f'<td class="c">{word}</td>' for word in prose(number).split())
    return f"<html><body><table><tr>{cells}</tr></table></body></html>"


# name → a record for each number, its text and its id.
SHAPES = {
    "plain": (lambda n: {"id": n, "text": prose(n)}, "text", "id"),
    "id is a URL, text is paragraphs": (
        lambda n: {"id": url(n), "text": prose(n).split(" the ")},
        "text",
        "id",
    ),
    "language code under a usual name": (
        lambda n: {"code": "en", "body": "de", "description": prose(n)},
        "description",
        None,
    ),
    "abstract and full text": (
        lambda n: {"title": "T", "abstract": prose(n, 20), "full": prose(n, 400)},
        "full",
        None,
    ),
    "S2ORC": (
        lambda n: {
            "paper_id": digest(n),
            "title": prose(n, 12),
            "abstract": [{"text": prose(n, 40), "section": "Abstract"}],
            "body_text": [
                {"section": "Intro", "text": prose(n), "cite_spans": [{"start": 1}]},
                {"section": "End", "text": prose(n + 1), "cite_spans": []},
            ],
        },
        "body_text[].text",
        "paper_id",
    ),
    "null at the beginning": (
        lambda n: {"id": str(n), "url": url(n), "text": None if n < 60 else prose(n)},
        "text",
        "id",
    ),
    "null-heavy": (
        lambda n: {"text": prose(n) if n % 20 == 0 else None, "content": prose(n)},
        "content",
        None,
    ),
    "text is a number": (
        lambda n: {"text": n, "comment": prose(n), "uuid": digest(n)},
        "comment",
        "uuid",
    ),
    "text is a number in a string": (
        lambda n: {"text": f"{n:012}", "note": prose(n)},
        "note",
        None,
    ),
    "text is a path": (
        lambda n: {"text": f"/data/my books/{n}/chapter one.txt", "ocr": prose(n)},
        "ocr",
        None,
    ),
    "one-word columns": (
        lambda n: {"content": WORDS[n % 13], "label": WORDS[n % 7], "review": prose(n)},
        "review",
        None,
    ),
    "long URLs": (
        lambda n: {"url": url(n), "link": url(n + 1), "snippet": prose(n, 15)},
        "snippet",
        "url",
    ),
    "HTML beside text": (
        lambda n: {"html": html(n), "raw": html(n) * 3, "text": prose(n), "url": url(n)},
        "text",
        "url",
    ),
    "embeddings": (
        lambda n: {
            "doc_id": f"d{n}",
            "embedding": [n / 7.0] * 300,
            "vector": base64.b64encode(np.arange(n, n + 400).tobytes()).decode(),
            "chunk": prose(n, 60),
        },
        "chunk",
        "doc_id",
    ),
    "license repeated": (
        lambda n: {"license": LICENSE, "terms": LICENSE * 2, "summary": prose(n, 30)},
        "summary",
        None,
    ),
    "Chinese": (
        lambda n: {"编号": n, "标题": han(n, 14), "正文": han(n), "链接": url(n)},
        "正文",
        None,
    ),
    "Chinese under usual names": (
        lambda n: {"id": n, "title": han(n, 14), "content": han(n, 90)},
        "content",
        "id",
    ),
    "source code": (
        lambda n: {
            "hexsha": digest(n),
            "path": f"src/deep/folder/module_{n}.py",
            "repo_name": f"owner/repository-{n}",
            "content": code(n),
            "lang": "Python",
        },
        "content",
        "hexsha",
    ),
    "chat": (
        lambda n: {"conversation_id": digest(n), "messages": turns(n), "model": "m"},
        "messages",
        None,
    ),
    "chat with other keys": (
        lambda n: {"dialog": [{"speaker": "A", "utterance": prose(n, 30)}] * 2},
        "dialog[].utterance",
        None,
    ),
    "chat log as a string": (
        lambda n: {"chat": f"A: {prose(n, 20)}\nB: {prose(n + 1, 20)}", "room": "sea"},
        "chat",
        None,
    ),
    "preferences": (
        lambda n: {"prompt": prose(n, 20), "chosen": turns(n), "rejected": turns(n)[:1]},
        "chosen",
        None,
    ),
    "instructions": (
        lambda n: {"instruction": prose(n, 12), "input": "", "output": prose(n, 90)},
        "output",
        None,
    ),
    "questions on few passages": (
        lambda n: {"id": digest(n), "context": prose(n // 5), "question": prose(n, 8)},
        "context",
        "id",
    ),
    "tokens beside text": (
        lambda n: {
            "input_ids": list(range(200)),
            "tokens": prose(n, 300).split(),
            "text": prose(n, 100),
        },
        "text",
        None,
    ),
    "post with comments": (
        lambda n: {
            "selftext": prose(n, 300),
            "comments": [{"author": "x", "body": prose(n + k, 30)} for k in range(8)],
        },
        "selftext",
        None,
    ),
    "nested": (
        lambda n: {"meta": {"id": digest(n), "abstract": prose(n)}, "data": {"text": prose(n)}},
        "data.text",
        "meta.id",
    ),
    "translations": (
        lambda n: {"translation": {"en": prose(n), "zh": han(n, 60)}},
        "translation.en",
        None,
    ),
    "JSON in a string": (
        lambda n: {"raw": json.dumps({"a": prose(n), "b": [n]}), "answer": prose(n, 60)},
        "answer",
        None,
    ),
    "mail": (
        lambda n: {
            "from": f"a{n}@example.org",
            "subject": prose(n, 9),
            "date": "2024-01-01 10:00:00",
            "body": prose(n),
        },
        "body",
        None,
    ),
    "file names": (
        lambda n: {"text": f"scans/{digest(n)}/page.png", "width": 3},
        None,
        None,
    ),
    "only codes": (lambda n: {"text": digest(n), "label": "yes", "n": 2.5}, None, None),
    "only numbers": (lambda n: {"text": [n, 1], "id": n}, None, "id"),
    "sections in sections": (
        lambda n: {
            "name": f"Town {n}",
            "sections": [{"parts": [{"value": prose(n)}, {"value": prose(n + 1)}]}],
        },
        "sections[].parts[].value",
        None,
    ),
    "camel case": (
        lambda n: {"documentId": digest(n), "pageContent": prose(n), "notes": prose(n)},
        "pageContent",
        "documentId",
    ),
    "ids repeat": (
        lambda n: {"id": n // 3, "url": url(n), "text": prose(n)},
        "text",
        "url",
    ),
    "a longer rejected answer": (
        lambda n: {
            "prompt": prose(n, 20),
            "chosen": turns(n),
            "rejected": [*turns(n), {"role": "assistant", "content": prose(n, 200)}],
        },
        "chosen",
        None,
    ),
    "a usual name that few records have": (
        lambda n: {"text": None if n % 8 else prose(n), "article_copy": prose(n, 150)},
        "article_copy",
        None,
    ),
    "triplets": (
        lambda n: {
            "anchor": prose(n, 20),
            "positive": prose(n, 60),
            "negative": prose(n, 150),
        },
        "positive",
        None,
    ),
    "pages with few tags": (
        lambda n: {
            "raw": f"<!DOCTYPE html><html><body><p>{prose(n, 400)}</p></body></html>",
            "plain": prose(n, 300),
        },
        "plain",
        None,
    ),
    "one column": (lambda n: {"anything": prose(n)}, "anything", None),
    "short lines": (lambda n: {"text": WORDS[n % 13]}, "text", None),
    "Cyrillic": (
        lambda n: {"заголовок": "Порт", "текст": f"Лодка {n} вышла. " * (n % 9 + 3)},
        "текст",
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_the_text_and_the_id_of_every_shape_are_found(shape):
    record, text, own_id = SHAPES[shape]
    choice = choose_columns([record(number) for number in range(200)])
    assert (choice.text, choice.id) == (text, own_id)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_few_records_are_enough(shape):
    record, text, own_id = SHAPES[shape]
    choice = choose_columns([record(number) for number in range(100, 130)])
    assert (choice.text, choice.id) == (text, own_id)


def written(folder, kind, rows):
    path = folder / f"a.{kind}"
    if kind == "jsonl":
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    elif kind == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=70)
    else:
        arrow_file(path, pa.Table.from_pylist(rows))
    return path


def sampled(path, max_bytes=10_000_000):
    source = Source(path=str(path))
    (file,) = list_files(source, where="path")
    return sample_records(file, source, max_bytes=max_bytes)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow", "csv"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_format_gives_the_same_choice(tmp_path, shape, kind):
    record, text, own_id = SHAPES[shape]
    rows = [record(number) for number in range(200)]
    if kind == "csv" and any(isinstance(v, list | dict) for v in rows[0].values()):
        return
    choice = choose_columns(sampled(written(tmp_path, kind, rows)))
    assert (choice.text, choice.id) == (text, own_id)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow", "csv"])
def test_the_sample_is_drawn_from_the_whole_file(tmp_path, kind):
    rows = [{"n": n, "text": None if n < 3000 else "a text"} for n in range(4000)]
    records = sampled(written(tmp_path, kind, rows))
    numbers = sorted(int(record["n"]) for record in records)
    assert len(records) == 256
    assert len({*numbers}) == 256
    assert numbers[-1] > 3900
    assert 32 < sum(record["text"] is not None for record in records) < 96


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_large_file_is_read_at_places_spread_over_it(tmp_path, kind):
    rows = [{"n": n, "text": prose(n)} for n in range(4000)]
    path = written(tmp_path, kind, rows)
    records = sampled(path, max_bytes=path.stat().st_size // 20)
    numbers = [record["n"] for record in records]
    assert len({*numbers}) == len(numbers)
    counts, _ = np.histogram(numbers, bins=8, range=(0, 4000))
    assert min(counts) > 0


def test_two_columns_that_could_be_the_text_are_rivals():
    records = [
        {
            "title": prose(n, 3),
            "abstract": prose(n, 60),
            "full": prose(n, 300),
            "body": None,
        }
        for n in range(50)
    ]
    choice = choose_columns(records)
    assert [rival.name for rival in choice.rivals("full")] == ["abstract"]
    assert choice.not_text == (("body", "nothing but null"),)
    assert choice.preferring("abstract").text == "abstract"
    assert [
        rival.name for rival in choice.preferring("abstract").rivals("abstract")
    ] == ["full"]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (3, "numbers"),
        ([1, 2], "lists of numbers"),
        (b"\xff", "binary data"),
        ([], "empty lists"),
        (True, "booleans"),
        ("https://example.org/a", "strings without sentences"),
        ("", "empty strings"),
        ({"n": 1}, "objects"),
        ([{"n": 1}], "lists of objects"),
    ],
)
def test_a_usual_name_without_text_is_named_with_what_it_holds(value, kind):
    choice = choose_columns([{"text": value, "other": prose(n)} for n in range(30)])
    assert choice.text == "other"
    assert choice.not_text == (("text", kind),)


@pytest.mark.parametrize(
    ("value_of", "word"),
    [
        (lambda n: f"<html><body><p>{prose(n, 400)}</p></body></html>", "HTML"),
        (lambda n: json.dumps({"title": "Harbour", "text": prose(n)}), "JSON"),
        (turns, "conversations"),
        (lambda n: prose(n, 300).split(" the "), "lists"),
    ],
)
def test_a_column_of_other_than_plain_text_is_told_with_what_it_holds(value_of, word):
    records = [{"value": value_of(n), "n": n} for n in range(20)]
    records.append({"value": prose(20), "n": 20})
    chosen, *_ = choose_columns(records).candidates
    assert chosen.name == "value"
    assert word in chosen.holds


def test_a_few_empty_conversations_leave_the_others_conversations():
    records = [{"messages": turns(n) if n % 5 else []} for n in range(50)]
    chosen, *_ = choose_columns(records).candidates
    assert chosen.name == "messages"
    assert "conversations" in chosen.holds


def test_the_text_is_never_the_id():
    for name in ("id", "url", "key"):
        choice = choose_columns([{name: prose(n)} for n in range(30)])
        assert choice.text != choice.id or choice.text is None


def test_no_records_have_no_columns():
    choice = choose_columns([])
    assert (choice.text, choice.id, choice.repeating) == (None, None, None)
