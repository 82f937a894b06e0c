"""Marks: one file, one mark a line, replaced whole."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from nextlong.errors import RunError
from nextlong.view import marks
from nextlong.view.marks import Mark


def test_marks_are_added_replaced_and_removed(tmp_path):
    document, source = Mark("web", "d1", "spam"), Mark("web")
    for mark in (document, source, Mark("web", "d1", "a form letter")):
        marks.change(tmp_path, mark, is_set=True)
    assert marks.read(tmp_path) == [source, Mark("web", "d1", "a form letter")]
    marks.change(tmp_path, document, is_set=False)
    assert marks.read(tmp_path) == [source]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".marks.jsonl.lock", marks.FILE]


def test_a_line_separator_within_a_mark_ends_no_line(tmp_path):
    mark = Mark("web\u2028", "d\u2029\x851", "a\x0bnote")
    marks.change(tmp_path, mark, is_set=True)
    with (tmp_path / marks.FILE).open("a") as file:
        file.write("\n  \n")
    assert marks.read(tmp_path) == [mark]


def test_viewers_of_one_run_lose_no_mark(tmp_path):
    every = [Mark("web", f"d{number}") for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda mark: marks.change(tmp_path, mark, is_set=True), every))
    assert sorted(marks.read(tmp_path), key=every.index) == every


def test_a_sequence_is_another_mark_than_its_document(tmp_path):
    for mark in (Mark("web", "d1"), Mark("web", "d1", sequence="base/3")):
        marks.change(tmp_path, mark, is_set=True)
    assert [mark.kind for mark in marks.read(tmp_path)] == ["document", "sequence"]
    lines = (tmp_path / marks.FILE).read_text().splitlines()
    assert list(map(json.loads, lines)) == [
        {"source": "web", "id": "d1"},
        {"source": "web", "id": "d1", "sequence": "base/3"},
    ]


@pytest.mark.parametrize("line", ["{", '{"id": "no source"}', '{"source": "s", "colour": "red"}', "[]"])
def test_a_line_that_is_no_mark_is_named(tmp_path, line):
    (tmp_path / marks.FILE).write_text(f'{{"source": "s"}}\n{line}\n')
    with pytest.raises(RunError, match=f"{marks.FILE}:2: not a mark"):
        marks.read(tmp_path)
