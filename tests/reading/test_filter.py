"""Conditions on other columns, in every format; what cannot be one; and what is kept beside the text."""

import datetime
import json

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong import pipeline
from nextlong.errors import CorpusError, RecipeError
from nextlong.reading import records
from nextlong.reading.files import FilePart
from nextlong.reading.filter import filter_of
from nextlong.reading.formats import read_records
from nextlong.reading.listing import input_files, list_files
from nextlong.reading.records import FilteredOut, Record, Reject
from nextlong.recipe import Source

ROWS = [
    {
        "text": "one",
        "id": "1",
        "lang": "en",
        "score": 0.9,
        "meta": {"licence": "cc0", "tags": ["a", "b"]},
    },
    {
        "text": "two",
        "id": "2",
        "lang": "de",
        "score": 0.95,
        "meta": {"licence": "mit", "tags": []},
    },
    {
        "text": "three",
        "id": "3",
        "lang": None,
        "score": 1.0,
        "meta": {"licence": None, "tags": ["b"]},
    },
    {"text": "four", "id": "4", "lang": "en", "score": 0.1, "meta": None},
]


def written(folder, kind, rows=ROWS):
    path = folder / f"a.{kind}"
    if kind == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        table = pa.Table.from_pylist(rows)
        with (
            pa.OSFile(str(path), "wb") as sink,
            pa.ipc.new_file(sink, table.schema) as writer,
        ):
            writer.write_table(table)
    return path


def read(path, **options):
    source = Source(path=str(path), name="a", **options)
    (file,) = list_files(source, where="path")
    return list(read_records(FilePart(file), source, max_document_chars=1000))


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("lang = 'en'", "14"),
        ("lang = 'en' AND score > 0.5", "1"),
        ("lang IS NULL OR lang <> 'en' -- all but English", "23"),
        ("meta.licence IN ('cc0', 'mit')", "12"),
        ("list_contains(meta.tags, 'b')", "13"),
        ("meta['licence'] = 'mit'", "2"),
        ("score BETWEEN 0.1 AND 0.9", "14"),
        ("text LIKE 't%'", "23"),
    ],
)
def test_documents_are_left_out_for_which_it_is_false_or_null(
    tmp_path, kind, where, ids
):
    items = read(written(tmp_path, kind), filter=where)
    assert "".join(item.source_id for item in items if isinstance(item, Record)) == ids
    left = [item for item in items if isinstance(item, FilteredOut)]
    assert [item.source_id for item in items] == list("1234")
    assert all(item.head == ROWS[item.line - 1]["text"] for item in left)
    assert all(item.values == () for item in items if isinstance(item, Record))


def test_columns_of_csv_are_text(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,text,score\n1,one,0.9\n2,two,\n3,three,0.75\n4,four,n/a\n")
    kept = [
        item.source_id
        for item in read(path, filter="TRY_CAST(score AS DOUBLE) > 0.8")
        if isinstance(item, Record)
    ]
    assert kept == ["1"]
    with pytest.raises(CorpusError) as caught:
        read(path, filter="score > 0.8")
    assert caught.value.where == "ingest.sources (a): filter"
    assert caught.value.value == "'score > 0.8'"
    assert f"{path}:2 to 5: " in caught.value.problem
    assert "TRY_CAST" in caught.value.fix


def test_what_is_kept_stands_beside_the_text_and_is_not_asked_for_by_where(tmp_path):
    items = read(
        written(tmp_path, "jsonl"),
        filter="score > 0.5",
        metadata=["lang", "meta.licence", "absent"],
    )
    assert [item.values for item in items if isinstance(item, Record)] == [
        ("en", "cc0", None),
        ("de", "mit", None),
        (None, None, None),
    ]


def test_rejects_stand_where_they_stood(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text":"a","n":1}\n{\n{"text":"b","n":0}\n{"text":"c","n":2}\n')
    kinds = [type(item) for item in read(path, filter="n > 0")]
    assert kinds == [Record, Reject, FilteredOut, Record]


def test_values_of_several_kinds_are_each_decided_by_what_they_are(tmp_path):
    path = written(
        tmp_path,
        "jsonl",
        [{"text": "a", "n": 1}, {"text": "b", "n": "many"}, {"text": "c", "n": [2]}],
    )
    assert [type(item) for item in read(path, filter="TRY_CAST(n AS INT) = 1")] == [
        Record,
        FilteredOut,
        FilteredOut,
    ]


@pytest.mark.parametrize("beside", [[], ["b"], ["b", ["b"]]])
def test_a_row_is_decided_alike_whatever_is_read_with_it(tmp_path, beside):
    rows = [{"text": "t", "tags": tags} for tags in (["a"], *beside, None)]
    first, *others = read(written(tmp_path, "jsonl", rows), filter="tags[1] = 'a'")
    assert isinstance(first, Record)
    assert all(isinstance(item, FilteredOut) for item in others)


def test_dates_of_parquet_are_dates(tmp_path):
    rows = [
        {"text": "a", "d": datetime.date(2019, 5, 1)},
        {"text": "b", "d": datetime.date(2021, 1, 1)},
    ]
    assert [
        type(item)
        for item in read(
            written(tmp_path, "parquet", rows), filter="d >= DATE '2020-01-01'"
        )
    ] == [
        FilteredOut,
        Record,
    ]


@pytest.mark.parametrize(
    "name", ["aggregate_date", "UNNEST_date", "WHERE clause cannot contain aggregates"]
)
@pytest.mark.parametrize("where", ["year({}) = 2021", "date_part('year', {}) > 2020"])
def test_names_of_columns_may_be_words_of_the_evaluators_refusals(
    tmp_path, name, where
):
    rows = [
        {"text": "a", name: datetime.date(2019, 5, 1)},
        {"text": "b", name: datetime.date(2021, 1, 1)},
    ]
    items = read(written(tmp_path, "parquet", rows), filter=where.format(f'"{name}"'))
    assert [type(item) for item in items] == [FilteredOut, Record]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_struct_may_be_named_with_a_field_of_its_own(tmp_path, kind):
    rows = [
        {"text": "a", "meta": {"b": {"c": 1}}},
        {"text": "b", "meta": {"b": None}},
        {"text": "c", "meta": None},
    ]
    items = read(
        written(tmp_path, kind, rows), filter="meta.b IS NOT NULL AND meta.b.c = 1"
    )
    assert [type(item) for item in items] == [Record, FilteredOut, FilteredOut]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("options", [{"filter": "lnag = 'en'"}, {"metadata": ["lnag"]}])
def test_a_column_that_a_table_does_not_have_is_refused(tmp_path, kind, options):
    with pytest.raises(CorpusError) as caught:
        read(written(tmp_path, kind), **options)
    assert "column 'lnag'" in caught.value.problem
    assert "id, lang" in caught.value.problem
    assert "'lang'" in caught.value.fix


def test_plain_text_has_no_columns(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(
        CorpusError,
        match="plain text .*'lang'",
    ):
        read(tmp_path / "a.txt", metadata=["lang"])


@pytest.mark.thorough
def test_no_function_of_this_duckdb_that_changes_by_itself_is_accepted():
    """Every function without arguments is called twice: whatever differs must be refused, declared CONSISTENT or not."""
    connection = duckdb.connect()
    query = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE len(parameters) = 0 AND function_type = 'scalar'"
    differ = []
    for (name,) in connection.execute(query).fetchall():
        try:
            values = {
                str(connection.execute(f'SELECT "{name}"()').fetchone())
                for _ in range(2)
            }
        except duckdb.Error:
            continue
        if len(values) > 1:
            differ.append(name)
            with pytest.raises(RecipeError, match="changes with every call"):
                filter_of(Source(path="a", filter=f"{name}() IS NULL OR x = 1"))
    assert {"current_localtime", "get_current_time", "random", "uuid"} <= set(differ)
    unstable = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability NOT IN ('CONSISTENT')"
    for (name,) in connection.execute(unstable).fetchall():
        with pytest.raises(RecipeError, match="changes with every call"):
            filter_of(Source(path="a", filter=f"{name}(x) = 1"))


def test_the_time_between_two_dates_is_a_condition():
    assert filter_of(
        Source(path="a", filter="age(b, a) < INTERVAL 1 YEAR")
    ).columns == ("b", "a")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("lang = ", "is not an SQL condition: syntax error"),
        ("lang == 'en' AND", "is not an SQL condition: syntax error"),
        ("random() < 0.1 AND lang = 'en'", "random(), which changes with every call"),
        ("date > now()", "now(), which changes with every call"),
        ("date > today()", "today(), which changes with every call"),
        ("date > NOW()", "now(), which changes with every call"),
        ("age(date) < INTERVAL 1 YEAR", "age(), which changes with every call"),
        ("date > ago(INTERVAL 1 DAY)", "ago(), which changes with every call"),
        ("date > current_date", "current_date, which changes with every call"),
        (
            "date > CURRENT_TIMESTAMP - INTERVAL 1 DAY",
            "current_timestamp, which changes with every call",
        ),
        (
            "date_diff('day', date, get_current_timestamp()) < 3",
            "get_current_timestamp(), which changes with every call",
        ),
        (
            "date > current_localtimestamp()",
            "current_localtimestamp(), which changes with every call",
        ),
        (
            "lang = current_database()",
            "current_database(), which changes with every call",
        ),
        ("id IN (SELECT id FROM 'other.csv')", "contains a subquery"),
        ("COLUMNS(*) > 1", "contains *"),
        ("#1 > 1", "contains #"),
        ("x = ?", "contains a parameter"),
        ("true) UNION SELECT (1", "is more than one condition"),
        ("true); DROP TABLE x; SELECT (1", "SELECT statements"),
        ("1 = 1", "uses no column"),
        (
            "Lang = 'a' OR lang = 'b'",
            "uses 'Lang' and 'lang', which are the same column in SQL",
        ),
        ("row_number() OVER () > x", "contains a window"),
    ],
)
def test_what_can_be_no_condition_is_refused_before_anything_runs(where, message):
    with pytest.raises(RecipeError) as caught:
        filter_of(Source(path="a", filter=where))
    assert str(caught.value).startswith(f"ingest.sources (a): filter={where!r}")
    assert message in str(caught.value)


@pytest.mark.parametrize("where", ["lang", "lower(score, 1) = 'a'", "lang > 1"])
def test_what_the_values_do_not_allow_is_refused_with_its_place(tmp_path, where):
    path = written(tmp_path, "jsonl")
    with pytest.raises(CorpusError, match=f"{path}:1 to ") as caught:
        read(path, filter=where)
    assert caught.value.value == repr(where)


@given(
    st.lists(
        st.none() | st.integers(-5, 5) | st.floats(-5, 5, allow_nan=False), max_size=30
    ),
    st.integers(-5, 5),
)
def test_numbers_are_compared_as_numbers_whatever_stands_beside_them(
    tmp_path_factory, numbers, bound
):
    path = written(
        tmp_path_factory.mktemp("n"),
        "jsonl",
        [{"text": "t", "n": number} for number in numbers],
    )
    holds = [isinstance(item, Record) for item in read(path, filter=f"n >= {bound}")]
    assert holds == [number is not None and number >= bound for number in numbers]


@pytest.mark.parametrize(
    "expression",
    [
        "count(score) > 1",
        "score > avg(score)",
        "geomean(score) > 1",
        "unnest(meta.tags) = 'a'",
        "unlist(meta.tags) = 'a'",
        "max(meta.a) > 1 AND meta.b = 1",
        "sum(meta.a) > meta.b",
        "sum(meta.a.x) > meta.b.y",
        "unnest([meta.a, meta.b]) > 0",
        "grouping(score) = 1",
        "lag(score) = 1",
        "row_number() < lead(meta.a, 2)",
        "first_value(score) = score",
    ],
)
def test_what_needs_several_rows_is_refused_before_any_is_read(expression):
    with pytest.raises(RecipeError, match="several rows") as caught:
        filter_of(Source(path="a.jsonl", name="a", filter=expression))
    assert "list_sum(x), list_contains(x, y), len(x)" in caught.value.fix


def test_a_function_that_is_none_is_refused_before_any_row_is_read():
    with pytest.raises(RecipeError, match="nosuch"):
        filter_of(Source(path="a.jsonl", filter="nosuch(lang) = 1"))


def test_documents_are_read_anew_where_another_version_decides(
    recipe_for, tmp_path, monkeypatch
):
    plain, asking = (
        recipe_for(tmp_path),
        recipe_for(tmp_path, "ingest.sources[0].filter=id <> 'x'"),
    )

    def fingerprints():
        return [
            pipeline.route(recipe, input_files(recipe.ingest))[0].fingerprint
            for recipe in (plain, asking)
        ]

    before = fingerprints()
    monkeypatch.setattr(records, "version", lambda package: f"{package}'s next")
    after = fingerprints()
    assert before[0] == after[0]
    assert before[1] != after[1]
