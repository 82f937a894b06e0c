"""The user's files: read line by line, row by row, compressed; one that is damaged is told with its source."""

import gzip
import json

import pytest

from evaluation_data import write
from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles

ODD = "one\u2028two\u2029three\u0085four\x0bfive\x0csix"  # str.splitlines ends a line at each


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_line_ends_at_its_newline_only(tmp_path, end):
    rows = [{"text": ODD}, {"text": "plain"}]
    lines = "".join(json.dumps(row, ensure_ascii=False) + end for row in rows).replace("\\u000b", "").replace("\\f", "")
    (tmp_path / "a.jsonl").write_bytes(lines.encode())
    expected = [{"text": ODD.replace("\x0b", "").replace("\x0c", "")}, {"text": "plain"}]
    assert list(DataFiles(tmp_path).json_lines("a.jsonl")) == expected


def test_a_damaged_line_is_told_by_its_number(tmp_path):
    write(tmp_path / "a.jsonl", '{"text": "a\u2028b"}\n{"text": \n')
    with pytest.raises(EvaluateError, match=r"a\.jsonl, line 2: no JSON"):
        list(DataFiles(tmp_path).json_lines("a.jsonl"))


def test_a_quoted_field_keeps_its_line_breaks(tmp_path):
    (tmp_path / "a.csv").write_bytes(f'text,label\r\n"first\nsecond\r\nthird {ODD}",x\r\nplain,y\r\n'.encode())
    assert DataFiles(tmp_path).rows("a.csv") == [
        {"text": f"first\nsecond\r\nthird {ODD}", "label": "x"},
        {"text": "plain", "label": "y"},
    ]


def test_a_damaged_gzip_is_told_with_its_source(tmp_path):
    whole = gzip.compress(b'{"text": "a long essay"}')
    (tmp_path / "ruler").mkdir()
    place = tmp_path / "ruler/PaulGrahamEssays.json.gz"
    for content in (whole[:-12], b"no gzip at all", whole[:12] + b"\xff\xff\xff" + whole[15:]):
        place.write_bytes(content)
        with pytest.raises(EvaluateError, match=r"Essays\.json\.gz cannot be read .* get it anew: it comes from"):
            DataFiles(tmp_path).json("ruler/PaulGrahamEssays.json")
    place.write_bytes(whole)
    assert DataFiles(tmp_path).json("ruler/PaulGrahamEssays.json") == {"text": "a long essay"}
