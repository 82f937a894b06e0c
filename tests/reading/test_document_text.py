"""The text of a document is the same in every format, whatever its columns hold."""

import csv
import json

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.files_read import arrow_file, lines, read

from nextlong.errors import CorpusError, RecipeError
from nextlong.reading.document_text import (
    ABSENT,
    conversation_text,
    document_text,
    paths_of,
    text_of,
    value_at,
)
from nextlong.reading.formats import estimate_text_bytes
from nextlong.reading.listing import list_files
from nextlong.reading.records import Record, Reject, RejectKind
from nextlong.recipe import Recipe, Source

FORMATS = ["jsonl", "parquet", "arrow", "stream.arrow"]
PAPER = {
    "section": "Methods",
    "text": "The nets were mended.",
    "cites": [{"start": 3}],
}


def write_table(path, table):
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        layout = "stream" if "stream" in path.name else "file"
        arrow_file(path, table, layout=layout)


def write(folder, name, rows):
    """Write the same rows in the format of the name."""
    path = folder / f"a.{name}"
    if name == "jsonl":
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    elif name == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        write_table(path, pa.Table.from_pylist(rows))
    return path


def outcome(item):
    return item.kind if isinstance(item, Reject) else item.text


@pytest.mark.parametrize("name", FORMATS)
def test_a_list_of_strings_is_joined_by_blank_lines(tmp_path, name):
    values = [["One.", "Two."], ["  a\n", None, "", "b"], [], [None], None, ["x"]]
    path = write(tmp_path, name, [{"text": value} for value in values])
    assert [outcome(item) for item in read(path)] == [
        "One.\n\nTwo.",
        "  a\n\n\nb",
        "",
        RejectKind.NULL,
        RejectKind.NULL,
        "x",
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_lists_in_lists_are_joined_as_one(tmp_path, name):
    path = write(tmp_path, name, [{"pages": [["a", "b"], [], None, ["c"]]}])
    assert [outcome(item) for item in read(path, text="pages")] == ["a\n\nb\n\nc"]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("column", ["body_text", "doc.body_text"])
def test_a_field_of_each_object_in_a_list_is_text(tmp_path, name, column):
    papers = [[PAPER, PAPER | {"text": "They dried."}], [PAPER | {"text": None}], None]
    outer, _, inner = column.partition(".")
    rows = [{outer: {inner: paper} if inner else paper} for paper in papers]
    path = write(tmp_path, name, rows)
    assert [outcome(item) for item in read(path, text=f"{column}[].text")] == [
        "The nets were mended.\n\nThey dried.",
        RejectKind.NULL,
        RejectKind.NULL,
    ]


@pytest.mark.parametrize("name", FORMATS)
def test_a_path_may_lead_through_several_lists(tmp_path, name):
    chapters = [
        {"title": "I", "pages": [{"lines": ["a", "b"]}, {"lines": ["c"]}]},
        {"title": "II", "pages": [{"lines": ["d"]}]},
    ]
    path = write(tmp_path, name, [{"book": chapters}])
    (document,) = read(path, text="book[].pages[].lines")
    assert document.text == "a\n\nb\n\nc\n\nd"


@pytest.mark.parametrize("name", [*FORMATS, "csv"])
def test_several_columns_are_joined_by_blank_lines(tmp_path, name):
    rows = [
        {"title": "Tides", "body": "They rise.\n\nThey fall.", "id": "a"},
        {"title": None, "body": "Only a body.", "id": "b"},
        {"title": "Only a title", "body": None, "id": "c"},
        {"title": None, "body": None, "id": "d"},
    ]
    path = write(tmp_path, name, rows)
    items = read(path, text=["title", "body"])
    # An empty field of a CSV file is an empty text, which ingest rejects.
    neither = "" if name == "csv" else RejectKind.NULL
    assert [outcome(item) for item in items] == [
        "Tides\n\nThey rise.\n\nThey fall.",
        "Only a body.",
        "Only a title",
        neither,
    ]
    assert [item.source_id for item in items[:3]] == ["a", "b", "c"]
    assert outcome(read(path, text=["body", "title"])[0]).endswith("\n\nTides")


@pytest.mark.parametrize("name", ["parquet", "arrow"])
@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3)]
)
def test_utf8_bytes_are_text_and_other_bytes_are_rejected(tmp_path, name, kind):
    values = [b"one", "zé".encode(), b"\xff\xfe\xfd", None]
    path = tmp_path / f"a.{name}"
    write_table(path, pa.table({"text": pa.array(values, kind)}))
    assert [outcome(item) for item in read(path)] == [
        "one",
        "zé",
        RejectKind.INVALID_UTF8,
        RejectKind.NULL,
    ]


@pytest.mark.parametrize("name", ["parquet", "arrow"])
@pytest.mark.parametrize(
    "kind",
    [
        pa.large_list(pa.large_string()),
        pa.list_(pa.binary()),
        pa.list_(pa.string(), 2),
        pa.list_(pa.dictionary(pa.int32(), pa.string())),
    ],
)
def test_every_arrow_list_of_strings_is_text(tmp_path, name, kind):
    path = tmp_path / f"a.{name}"
    values = pa.array([["one", "two"], ["three", None]], pa.list_(pa.string()))
    write_table(path, pa.table({"text": values.cast(kind)}))
    assert [outcome(item) for item in read(path)] == ["one\n\ntwo", "three"]


def test_a_list_with_a_string_that_is_not_utf8_costs_one_row(tmp_path):
    raw = pa.array([b"one", b"\xff", b"three"], pa.binary())
    strings = pa.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2])
    column = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3]), strings)
    path = arrow_file(tmp_path / "a.arrow", pa.table({"text": column}))
    assert [outcome(item) for item in read(path)] == [
        "one",
        RejectKind.INVALID_UTF8,
        "three",
    ]


ITEM_TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\0\r\n"), max_size=8
)


@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "title": st.none() | ITEM_TEXT,
                "body": st.none() | st.lists(st.none() | ITEM_TEXT, max_size=4),
                "parts": st.lists(st.fixed_dictionaries({"t": ITEM_TEXT}), max_size=3),
            }
        ),
        min_size=1,
        max_size=6,
    )
)
def test_the_same_rows_give_the_same_documents_in_every_format(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("rows")
    schema = pa.schema(
        {
            "title": pa.string(),
            "body": pa.list_(pa.string()),
            "parts": pa.list_(pa.struct({"t": pa.string()})),
        }
    )
    table = pa.Table.from_pylist(rows, schema)
    write(folder, "jsonl", rows)
    write_table(folder / "a.parquet", table)
    write_table(folder / "a.arrow", table)
    for text in ("title", "body", "parts[].t", ["title", "body", "parts[].t"]):
        expected = [outcome(item) for item in read(folder / "a.jsonl", text=text)]
        for name in ("a.parquet", "a.arrow"):
            items = read(folder / name, text=text)
            assert [outcome(item) for item in items] == expected
        columns = [text] if isinstance(text, str) else text
        for row, found in zip(rows, expected, strict=True):
            _check_that_nothing_is_lost(row, columns, found)


def _check_that_nothing_is_lost(row, columns, found):
    pieces = []
    for column in columns:
        value = row[column.partition("[]")[0]]
        items = value if isinstance(value, list) else [value]
        items = [item["t"] if isinstance(item, dict) else item for item in items]
        pieces += [item for item in items if item]
    if not isinstance(found, RejectKind):
        assert found == "\n\n".join(pieces)
    else:
        assert not pieces


@pytest.mark.parametrize("name", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("column", "value", "named"),
    [
        ("text", [PAPER], "text[].section, text[].text"),
        ("text", {"en": "a", "de": "b"}, "text.en, text.de"),
        ("text", 5, "int64"),
        ("text", [1, 2], "another column"),
    ],
)
def test_a_column_that_holds_no_text_is_refused_with_its_fields(
    tmp_path, name, column, value, named
):
    write_table(tmp_path / f"a.{name}", pa.Table.from_pylist([{column: value}]))
    with pytest.raises(CorpusError) as caught:
        read(tmp_path / f"a.{name}")
    assert "column 'text' holds " in str(caught.value)
    assert named in str(caught.value)


def test_json_lines_reject_objects_with_the_field_that_holds_the_text(tmp_path):
    rows = [{"text": [PAPER]}, {"text": {"en": "a text", "n": 1}}, {"text": 5}]
    first, second, third = lines(tmp_path / "a.jsonl", *map(json.dumps, rows))
    kind = RejectKind.NOT_A_STRING
    assert (first.kind, second.kind, third.kind) == (kind, kind, kind)
    assert first.detail.endswith("text: text[].text")
    assert second.detail.endswith("text: text.en")
    assert third.detail == ""


@pytest.mark.parametrize("name", [*FORMATS, "csv"])
@pytest.mark.parametrize("text", ["bodi", ["title", "bodi"], ["title", "body[].t"]])
def test_each_text_column_must_exist(tmp_path, name, text):
    path = write(tmp_path, name, [{"title": "a", "body": "b"}] * 3)
    with pytest.raises(CorpusError) as caught:
        read(path, text=text)
    missing = text if isinstance(text, str) else text[1]
    assert repr(missing) in str(caught.value)
    assert "title" in str(caught.value)


def test_a_record_may_lack_one_of_several_columns(tmp_path):
    rows = ['{"title": "a", "body": "b"}', '{"body": "b"}', '{"x": 1}']
    items = lines(tmp_path / "a.jsonl", *rows, text=["title", "body"])
    assert [outcome(item) for item in items] == ["a\n\nb", "b", RejectKind.NO_COLUMN]


def test_a_lone_surrogate_anywhere_in_the_text_is_one_reject(tmp_path):
    rows = ['{"text": ["a", "\\ud800"]}', '{"text": ["a"], "title": "\\ud800"}']
    items = lines(tmp_path / "a.jsonl", *rows)
    assert [outcome(item) for item in items] == [RejectKind.LONE_SURROGATE, "a"]


def test_a_column_that_is_spelled_like_a_path_comes_first(tmp_path):
    row = {"a[].b": "whole", "a": [{"b": "inner"}]}
    for name in FORMATS:
        (item,) = read(write(tmp_path, name, [row]), text="a[].b")
        assert item.text == "whole"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("row", "path"),
    [
        ({"doc.v1": {"body": "A tide."}}, "doc.v1.body"),
        ({"doc": {"body.text": "A tide."}}, "doc.body.text"),
        ({"doc": {"x": 1}, "doc.v1": {"a.b": {"c": "A tide."}}}, "doc.v1.a.b.c"),
        ({"pages": [{"p.q": {"r": "A tide."}}]}, "pages[].p.q.r"),
        ({"my.pages": [{"t": "A tide."}]}, "my.pages[].t"),
    ],
)
def test_a_name_with_a_dot_may_hold_objects(tmp_path, name, row, path):
    file = write(tmp_path, name, [row])
    assert path in [found for found, _ in paths_of(row)]
    assert [outcome(item) for item in read(file, text=path)] == ["A tide."]


def test_deep_nesting_is_rejected(tmp_path):
    deep = "[" * 900 + '"x"' + "]" * 900
    (item,) = lines(tmp_path / "a.jsonl", f'{{"text": {deep}}}')
    assert item.kind == RejectKind.NOT_A_STRING


@pytest.mark.parametrize("text", [[], [""], 3, [3], {"a": 1}, ["a", "a"]])
def test_another_value_of_text_is_refused_by_its_key(tmp_path, text):
    source = {"path": "a.jsonl", "text": text}
    with pytest.raises(RecipeError) as caught:
        Recipe.from_dict({"run_dir": str(tmp_path), "ingest": {"sources": [source]}})
    assert "ingest.sources[0].text" in str(caught.value)
    assert ".str" not in str(caught.value)


@pytest.mark.parametrize("keys", [{"text": "id"}, {"text": ["a", "b"], "id": "b"}])
def test_a_column_is_not_both_text_and_id(tmp_path, keys):
    source = {"path": "a.jsonl", **keys}
    with pytest.raises(RecipeError) as caught:
        Recipe.from_dict(
            {
                "run_dir": str(tmp_path),
                "ingest": {"sources": [source]},
                "tokenizer": {"train": 400},
            }
        )
    assert "ingest.sources[0]" in str(caught.value)


def test_a_list_of_one_column_is_that_column():
    assert Source(path="a", text=["body"]) == Source(path="a", text="body")


@pytest.mark.parametrize("name", [*FORMATS, "csv"])
@pytest.mark.parametrize("text", ["body", ["title", "body"], "parts[].t"])
def test_the_bytes_of_text_are_estimated(tmp_path, name, text):
    if name == "csv" and text == "parts[].t":
        return
    row = {"title": "t" * 100, "body": "b" * 900}
    if name != "csv":
        row["parts"] = [{"t": "p" * 500}]
    path = write(tmp_path, name, [row | {"n": number} for number in range(50)])
    source = Source(path=str(path), text=text)
    expected = 50 * {"body": 900, "parts[].t": 500}.get(str(text), 1000)
    estimate = estimate_text_bytes(list_files(source, where="path"), source)
    # Parquet counts encoded bytes: equal texts are stored once.
    # Small batches of a stream have as many bytes of headers as of text.
    assert name == "parquet" or 0.5 * expected < estimate < 5 * expected
    assert estimate > 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        (b"a", "a"),
        (["a", b"b"], "a\n\nb"),
        ([], ""),
        ([[{"from": "human", "value": "Why?"}]], "user: Why?"),
        (None, (RejectKind.NULL, "")),
        ([1], (RejectKind.NOT_A_STRING, "")),
        (["a", 1], (RejectKind.NOT_A_STRING, "")),
        (True, (RejectKind.NOT_A_STRING, "")),
    ],
)
def test_what_has_text_and_what_has_none(value, text):
    assert text_of(value) == text


def test_values_are_found_at_paths():
    record = {"a": {"b": [{"c": 1}, {"d": 2}, None]}, "e": None, "f": "x"}
    assert value_at(record, "a.b[].c") == [1, None]
    assert value_at(record, "e[].c") is None
    for absent in ("g", "a.g", "f.g", "f[].g", "a.b[].x", "a.b[].c.d"):
        assert value_at(record, absent) in (ABSENT, [None])
    assert document_text(["g"], [ABSENT]) == (RejectKind.NO_COLUMN, "")
    assert [path for path, _ in paths_of(record)] == [
        "a", "a.b", "a.b[].c", "a.b[].d", "e", "f",
    ]  # fmt: skip


ROLES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Why?\n"},
    {"role": "assistant", "content": "So."},
]
SHARED = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}]
TEXT = "system: Be brief.\n\nuser: Why?\n\nassistant: So."


def test_turns_stand_one_below_the_other_under_their_roles():
    assert conversation_text(ROLES) == TEXT
    assert conversation_text(SHARED) == "user: Why?\n\nassistant: So."
    parts = [
        {"type": "text", "text": "See"},
        {"type": "image_url"},
        {"type": "text", "text": "this."},
    ]
    assert conversation_text([{"role": "user", "content": parts}]) == "user: See\nthis."
    assert (
        conversation_text(
            [*ROLES[:2], {"role": "assistant", "content": None, "tool_calls": [1]}]
        )
        == TEXT.rpartition("\n\n")[0]
    )


@pytest.mark.parametrize(
    "value",
    [
        [],
        "text",
        ["text"],
        [{"role": "user"}],
        [{"role": 1, "content": "x"}],
        [{"role": "user", "content": 3}],
        None,
    ],
)
def test_what_is_no_conversation_has_no_text(value):
    assert conversation_text(value) is None


def test_json_lines_of_conversations_are_documents_and_other_lists_are_rejected(
    tmp_path,
):
    rows = [
        {"id": "a", "messages": ROLES},
        {"id": "b", "messages": [1, 2]},
        {"id": "c", "messages": SHARED},
    ]
    (tmp_path / "chat.jsonl").write_bytes(
        b"".join(orjson.dumps(row) + b"\n" for row in rows)
    )
    first, second, third = read(tmp_path / "chat.jsonl", text="messages")
    assert first == Record(TEXT, "a", 1)
    assert second == Reject("chat.jsonl", 2, RejectKind.NOT_A_STRING)
    assert (third.text, third.source_id) == ("user: Why?\n\nassistant: So.", "c")


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_tables_of_conversations_are_documents(tmp_path, suffix):
    table = pa.table({"id": ["a", "b"], "conversations": [SHARED, None]})
    path = tmp_path / f"chat.{suffix}"
    write_table(path, table)
    first, second = read(path, text="conversations")
    assert first == Record("user: Why?\n\nassistant: So.", "a", 1)
    assert second == Reject(path.name, 2, RejectKind.NULL)
