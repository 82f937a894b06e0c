"""JSON lines: each line on its own, whatever is wrong with it, and files that are entered in their middle."""

import gzip
import io
import itertools
import json
import shlex

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.compressed import COMPRESSORS
from tests.support.files_read import lines, read, zstd

from nextlong.corpus.splits import _count_lines
from nextlong.errors import CorpusError
from nextlong.reading.files import FilePart
from nextlong.reading.formats import read_records, sample_records
from nextlong.reading.json_lines import FORMAT
from nextlong.reading.listing import list_files
from nextlong.reading.records import Record, Reject, RejectKind
from nextlong.recipe import Source


@pytest.mark.parametrize(
    ("suffix", "compress"), [("", bytes), (".gz", gzip.compress), (".zst", zstd)]
)
def test_json_lines_plain_and_compressed(tmp_path, suffix, compress):
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(compress(b'{"text":"one","id":7}\n\n{"text":"two \\u00e9"}'))
    assert read(path) == [
        Record("one", "7", 1),
        Record("two é", f"a.jsonl{suffix}:3", 3),
    ]


def test_several_compressed_frames_are_one_file(tmp_path):
    for name, compress in (("a.jsonl.zst", zstd), ("b.jsonl.gz", gzip.compress)):
        (tmp_path / name).write_bytes(
            compress(b'{"text":"one"}\n') + compress(b'{"text":"two"}\n')
        )
    assert [item.text for item in read(tmp_path)] == ["one", "two", "one", "two"]


def test_empty_files_give_nothing(tmp_path):
    for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.zst"):
        (tmp_path / name).write_bytes(b"")
    assert read(tmp_path) == []


def test_byte_order_mark_blank_lines_and_carriage_returns_are_harmless(tmp_path):
    items = lines(
        tmp_path / "a.jsonl",
        b'\xef\xbb\xbf{"text":"one"}\r',
        b"  \r",
        b'{"text":"two"}\r',
    )
    assert [(item.text, item.line) for item in items] == [("one", 1), ("two", 3)]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"text": "cut', "broken JSON"),
        ("[1, 2]", "not a JSON object"),
        ('"text"', "not a JSON object"),
        ('{"title": "x"}', "no text column"),
        ('{"text": null}', "text is null"),
        ('{"text": 5}', "text is not a string"),
        (b'{"text": "\xff"}', "invalid UTF-8"),
        ('{"text": "a \\ud800 b"}', "lone surrogate in the text"),
        ("[" * 100_000, "broken JSON"),
    ],
)
def test_bad_line_is_a_reject_with_its_line_and_reason(tmp_path, row, reason):
    good, bad, after = lines(
        tmp_path / "a.jsonl", '{"text":"fine"}', row, '{"text":"after"}'
    )
    assert (bad.file, bad.line, bad.kind) == ("a.jsonl", 2, reason)
    assert (good.text, after.text, after.line) == ("fine", "after", 3)


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_the_column_of_a_cut_line_is_its_last_one(tmp_path, end):
    (tmp_path / "a.jsonl").write_text('{"text": "cut"' + end)
    (reject,) = read(tmp_path)
    assert reject.reason.endswith(" column 15")


def test_oddities_outside_the_text_do_not_cost_the_document(tmp_path):
    items = lines(
        tmp_path / "a.jsonl",
        '{"text":"one","score":NaN}',
        '{"text":"two","title":"\\ud800"}',
    )
    assert [item.text for item in items] == ["one", "two"]


def test_rows_that_are_sampled_end_before_a_line_that_is_too_long(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text":"one"}\n{"text":"' + b"x" * 40_000_000)
    (file,) = list_files(Source(path=str(path)), where="ingest.sources[0].path")
    with path.open("rb", buffering=0) as opened:
        stream = io.FileIO(opened.fileno(), closefd=False)
        assert list(FORMAT.rows(stream, FilePart(file))) == [{"text": "one"}]
        assert opened.tell() < file.bytes


def test_line_that_no_document_can_need_is_a_reject(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'{"text":"one"}\n{"text":"two","junk":"'
        + b"x" * 65_000_000
        + b'"}\n{"text":"three"}\n'
    )
    assert read(path) == [
        Record("one", "a.jsonl:1", 1),
        Reject("a.jsonl", 2, RejectKind.LINE_TOO_LONG),
        Record("three", "a.jsonl:3", 3),
    ]


@pytest.mark.parametrize(
    ("given_id", "read_id"),
    [
        ('"k"', "k"),
        ("12", "12"),
        ("1.5", "1.5"),
        ('""', "a.jsonl:1"),
        ("null", "a.jsonl:1"),
        ("[1]", "a.jsonl:1"),
    ],
)
def test_id_is_any_scalar_as_a_string(tmp_path, given_id, read_id):
    (item,) = lines(tmp_path / "a.jsonl", f'{{"text":"x","id":{given_id}}}')
    assert item.source_id == read_id


def test_dotted_name_reads_a_nested_field_unless_a_key_is_called_so(tmp_path):
    rows = [
        '{"doc":{"body":"nested"},"meta":{"key":1}}',
        '{"doc.body":"literal","doc":{"body":"nested"}}',
    ]
    items = lines(tmp_path / "a.jsonl", *rows, text="doc.body", id="meta.key")
    assert items == [Record("nested", "1", 1), Record("literal", "a.jsonl:2", 2)]


@pytest.mark.parametrize("count", [1, 150])
def test_file_without_the_text_column_stops_with_the_nearest_key(tmp_path, count):
    with pytest.raises(
        CorpusError,
        match=r"'text'.*txet, meta, meta\.lang; .*'txet'",
    ):
        lines(tmp_path / "a.jsonl", *['{"txet":"x","meta":{"lang":"en"}}'] * count)


def test_json_array_is_refused_with_its_conversion(tmp_path):
    with pytest.raises(CorpusError, match=r"jq -c '\.\[\]'"):
        lines(tmp_path / "a.json", "[", '{"text":"x"}', "]")


def test_binary_junk_called_json_lines_is_rejects(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(bytes(range(256)) * 40)
    items = read(path)
    assert items
    assert all(isinstance(item, Reject) for item in items)


LINES = st.sampled_from(
    [
        b'{"text":"one"}',
        b'{"text":"two","id":2}',
        b"",
        b"  \r",
        b"broken",
        b'{"text":"' + b"x" * 40 + b'"}',
    ]
)


@given(
    st.lists(LINES, min_size=1),
    st.booleans(),
    st.lists(st.integers(1, 400), max_size=6),
)
@example(
    [b'{"text":"one"}', b'{"text":"two"}'], True, [5, 20, 40]
)  # each part begins within a line
def test_parts_of_a_file_give_its_records_once_with_their_line_numbers(
    tmp_path_factory, rows, is_ended, cuts
):
    path = tmp_path_factory.mktemp("parts") / "a.jsonl"
    path.write_bytes(b'{"text":"head"}\n' + b"\n".join(rows) + b"\n" * is_ended)
    source = Source(path=str(path))
    (file,) = list_files(source, where="ingest.sources[0].path")
    bounds = [0, *sorted({cut for cut in cuts if cut < file.bytes}), file.bytes]
    items, above = [], 0
    for start, stop in itertools.pairwise(bounds):
        part = FilePart(file, start, stop, above)
        items += read_records(part, source, max_document_chars=1000)
        above += _count_lines(None, part=part).lines
    assert items == list(read_records(FilePart(file), source, max_document_chars=1000))
    assert (
        above
        == _count_lines(None, part=FilePart(file)).lines
        == path.read_bytes().count(b"\n")
    )


def test_only_the_head_of_a_file_says_whether_it_has_the_column(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text":"one"}\n' + b'{"other":1}\n' * 200)
    source = Source(path=str(path))
    (file,) = list_files(source, where="ingest.sources[0].path")
    rest = list(
        read_records(FilePart(file, 15, file.bytes, 1), source, max_document_chars=1000)
    )
    kind = RejectKind.NO_COLUMN
    assert rest == [Reject("a.jsonl", line, kind) for line in range(2, 202)]


def test_file_that_cannot_be_counted_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"{}\n")
    (file,) = list_files(Source(path=str(path)), where="ingest.sources[0].path")
    path.unlink()
    with pytest.raises(CorpusError, match="deleted") as caught:
        _count_lines(None, part=FilePart(file))
    assert caught.value.where == str(path)


WHOLE = {
    "one line": '[{"text": "one"}, {"text": "two"}]',
    "a line for each": '[\n{"text": "one"},\n{"text": "two"}\n]\n',
    "indented": json.dumps([{"text": "one"}, {"text": "two"}], indent=2),
    "one object": json.dumps({"text": "one"}, indent=2),
    "with a mark": '\ufeff[{"text": "one"}]',
}


@pytest.mark.parametrize("content", WHOLE.values(), ids=WHOLE.keys())
@pytest.mark.parametrize("name", ["a b.json", "a.jsonl", "a.json.gz", "a.ndjson.xz"])
def test_one_json_value_is_refused_with_the_command_that_converts_it(
    tmp_path, name, content
):
    suffix = f".{name.rpartition('.')[2]}"
    compress = COMPRESSORS.get(suffix, bytes)
    (tmp_path / name).write_bytes(compress(content.encode()))
    with pytest.raises(CorpusError) as caught:
        read(tmp_path / name)
    command = caught.value.fix
    kind = "." if content.startswith("{") else ".[]"
    assert f"jq -c '{kind}'" in command
    assert shlex.quote(name) in command
    is_compressed = suffix in COMPRESSORS
    assert ("|" in command) is is_compressed


NOT_LINES = {
    "objects without line ends": ('{"text": "one"}{"text": "two"}', "jq -c '.'"),
    "objects with blanks between": ('{"text": "one"} {"text": "two"}\n', "jq -c '.'"),
    "an object over lines": ('{"version": 1,\n"data": [\n1]}\n', "jq -c '.'"),
    "a text sequence": ('\x1e{"text": "one"}\n\x1e{"text": "two"}\n', "jq --seq -c"),
}


@pytest.mark.parametrize(("content", "jq"), NOT_LINES.values(), ids=NOT_LINES.keys())
def test_a_file_without_an_object_per_line_is_sampled_with_its_conversion(
    tmp_path, content, jq
):
    source = Source(path=str(tmp_path / "a.json"))
    (tmp_path / "a.json").write_text(content)
    (file,) = list_files(source, where="ingest.sources[0].path")
    with pytest.raises(CorpusError) as caught:
        sample_records(file, source, max_bytes=1000)
    assert f"convert it: {jq}" in str(caught.value)


def test_a_first_line_that_lost_its_end_is_one_reject(tmp_path):
    items = lines(tmp_path / "a.jsonl", '{"text": "cut"', '{"text": "one"}{"text": ""}')
    assert [item.kind for item in items] == [RejectKind.BROKEN_JSON] * 2


def test_a_line_with_an_array_among_others_is_one_reject(tmp_path):
    items = lines(tmp_path / "a.jsonl", '["id", "text"]', '{"text": "one"}')
    assert [item.reason for item in items[:1]] == ["not a JSON object"]
    assert items[1].text == "one"
