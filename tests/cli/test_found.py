"""What `init` says of the files that it found."""

import pytest

from nextlong.cli import found
from nextlong.inputs import pages
from nextlong.recipe import Source


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, ""), (1, "a"), (3, "a, b, c"), (4, "a, b, c, d"), (5, "a, b, c and 2 more"), (7, "a, b, c and 4 more")],
)
def test_so_many_names_are_listed_that_none_is_hidden_for_nothing(count, said):
    assert found.listed(list("abcdefg")[:count]) == said


def of(path, **keys):
    return list(found.of_source(Source(path=str(path), name="s", **keys)))


def test_what_is_far_away_is_a_guess():
    assert of("s3://bucket/a.jsonl", text="body", id="key") == [
        "s: not looked into; text from 'body' and ids from 'key' are guesses"
    ]


def test_columns_come_first_and_what_speaks_against_them_after(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"key": "a", "text": "one text of words"}\n{"key": "b", "text": "another text"}\n'
    )
    (tmp_path / "b.jsonl").write_text('{"key": "c", "body": "a text of several words"}\n')
    (tmp_path / "c.txt").write_text("a whole document\n")
    (tmp_path / "d.parquet").write_bytes(b"no parquet")
    first, *others = of(tmp_path, id="key")
    assert first == "s: text from 'text', ids from 'key'"
    assert others[0] == "s: c.txt: each file, or page, is a document"
    assert others[1].startswith(f"s: {tmp_path / 'd.parquet'} cannot be read: ")
    assert others[1].endswith("; mend it, or leave it out")
    assert others[2:] == ["s: b.jsonl: text seems to be in 'body'; make them a source of their own"]


def test_what_is_wrong_is_said_once_for_files_alike_with_the_cure_that_a_run_gives(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "extractor", lambda: "")
    for name in "abcdef":
        (tmp_path / f"{name}.html").write_text("<p>A page.</p>")
        (tmp_path / f"{name}.json").write_text('[\n{"text": "one"}]')
    (tmp_path / "a.csv").write_text("id;text\n1;a text of several words, and of more than forty letters\n")
    first, *others = of(tmp_path)
    assert first == "s: text from 'text' is a guess, for no file could be read"
    assert others == [
        "s: a.html, b.html, c.html and 3 more: each file, or page, is a document",
        f"s: {tmp_path}/a.csv: its first row has no ',' but ';' between the names of columns; "
        "rewrite it with commas, as in RFC 4180",
        f"s: {tmp_path}/a.html needs the package resiliparse, which is not installed; pip install 'nextlong[web]' "
        "(so with b.html, c.html, d.html and 2 more)",
        f"s: {tmp_path}/a.json is one JSON array, not JSON lines; convert it: jq -c '.[]' a.json > a.jsonl "
        "(so with b.json, c.json, d.json and 2 more)",
    ]


def test_pages_are_documents_as_they_are(tmp_path):
    (tmp_path / "a.html").write_text("<p>A page.</p>")
    assert of(tmp_path) == ["s: each file, or page, is a document"]


def test_ids_that_repeat_are_none(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": "x", "text": "one text of words"}\n' * 2)
    (said,) = of(tmp_path / "a.jsonl")
    assert "ids from 'id', which repeat ('x' stands twice)" in said
    (tmp_path / "b.jsonl").write_text('{"text": "one text of words"}\n{"text": "another text of words"}\n')
    assert of(tmp_path / "b.jsonl") == ["s: text from 'text', no ids found: documents are called file:line"]


def test_plain_texts_have_no_columns(tmp_path):
    (tmp_path / "a.txt").write_text("a text\n")
    assert of(tmp_path) == ["s: each file, or page, is a document"]


def test_files_that_no_format_is_known_for_and_those_that_were_not_taken(tmp_path):
    for name in ("a.jsonl", "b.csv", ".hidden.csv", "README.md", "c.docx", "in/d.docx", "in/.git/e.docx"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert found.left_beside(tmp_path, [str(tmp_path / "a.jsonl")]) == ["b.csv"]
    assert found.unread(tmp_path) == ["c.docx", "in/d.docx"]
