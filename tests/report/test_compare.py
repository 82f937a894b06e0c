"""Data sets side by side: of several runs, and of variants of one."""

import csv
import io
import json
import re

import pytest
from rich.console import Console
from tests.support.changed_stats import changed

import nextlong
from nextlong import pipeline
from nextlong.cli import main as cli_main
from nextlong.corpus.filter_report import Example, LeftOut
from nextlong.report import compare
from nextlong.runs.statistics.measure import measure


@pytest.fixture(scope="module")
def runs(recipe_for, started, tmp_path_factory):
    """Two run directories that differ in position and length."""
    folder = tmp_path_factory.mktemp("compare")
    for name, sets in (
        ("near", ["compose.target_tokens=1024"]),
        ("far", ["compose.position=tail"]),
    ):
        pipeline.run(recipe_for(started(folder / name), *sets))
    return [folder / "near", folder / "far"]


def test_one_column_a_run(runs, capsys):
    assert cli_main.main(["compare", *map(str, runs)]) == 0
    same, _, heading, *lines = capsys.readouterr().out.splitlines()
    assert same.startswith(
        "the same in all: method nextlong; negatives top; max chars "
    )
    assert heading.split() == ["near", "far"]
    told = {" ".join(cells[:-2]): cells[-2:] for cells in map(str.split, lines)}
    near, far = (measure(nextlong.open(run)) for run in runs)
    assert told["position"] == ["head", "tail"]
    assert told["target tokens"] == ["1,024", "2,048"]
    assert told["tokens"] == ["12,288", "24,576"]
    assert told["cosine rank 1"] == [
        f"{one.similarity.by_rank[0].mean:.3f}" for one in (near, far)
    ]
    assert told["distance max"] == [
        f"{one.distance_tokens.max:,.0f}" for one in (near, far)
    ]


def test_csv_has_one_row_a_run_and_empty_cells_for_nothing(runs, capsys):
    assert cli_main.main(["compare", "--csv", *map(str, runs)]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["run"] for row in rows] == list(map(str, runs))
    assert [row["tokens"] for row in rows] == ["12288", "24576"]
    measured = measure(nextlong.open(runs[0]))
    assert float(rows[0]["cosine_mean"]) == measured.similarity.cosine.mean
    assert rows[0]["cosine_rank_200"] == ""


def test_json_holds_everything(runs, capsys):
    assert cli_main.main(["compare", "--json", *map(str, runs)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["run"] for one in found] == list(map(str, runs))
    assert cli_main.main(["stats", "--json", str(runs[1])]) == 0
    assert json.loads(capsys.readouterr().out) == found[1]


def test_stats_show_an_example_of_what_each_filter_removed(shared_run):
    measured = measure(nextlong.open(shared_run))
    example = Example(source_id="doc-17", source="sea", head="Tide", note="of doc-3")
    left_out = LeftOut("exact duplicate", "documents", 2, (example,))
    console = Console(file=io.StringIO(), width=200)
    compare.show_one(changed(measured, {"corpus.left_out": (left_out,)}), console)
    printed = console.file.getvalue()
    assert "2 documents: " in printed
    assert left_out.reason in printed
    assert 'doc-17 · of doc-3 · "Tide"' in printed


def test_what_is_no_run_is_named(runs, tmp_path, capsys):
    assert cli_main.main(["compare", str(runs[0]), str(tmp_path)]) == 2
    assert f"{tmp_path}: " in capsys.readouterr().err


def test_mixed_lengths_are_told(runs):
    measured = measure(nextlong.open(runs[0]))
    longer = changed(measured, {"setting.target_tokens": 4096})

    def told(*compared):
        console = Console(file=io.StringIO())
        compare.show(compared, console)
        return console.file.getvalue()

    assert "lengths are mixed" not in told(measured, measured)
    length = measured.setting.target_tokens
    assert f"lengths are mixed ({length:,} and 4,096 tokens)" in told(longer, measured)


def test_what_is_the_same_in_all_is_told_above():
    rows = [{"a": 1, "b": None, "c": 2}, {"a": 1, "b": None, "c": 3}]
    console = Console(file=io.StringIO())
    assert compare.show_same(rows, ["a", "b", "c"], console) == {"a": 1}
    assert compare.show_same(rows[:1], ["a", "b", "c"], console) == {}
    assert console.file.getvalue() == "the same in all: a 1\n\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (12345, "12,345"), (0.12345, "0.123"), (12.345, "12.3"), (-0.5, "-0.500"), (1234.9, "1,235"), ("[x]", "[x]")],
)  # fmt: skip
def test_cells(value, text):
    assert compare.text_of(value) == text


def test_equal_runs_are_told_to_be_the_same(runs, capsys):
    assert cli_main.main(["compare", str(runs[0]), str(runs[0])]) == 0
    out = capsys.readouterr().out
    same, _, *rest = out.splitlines()
    assert len(same.split(";")) > 10
    assert len(rest) == 1


def test_cosines_of_chunks_and_of_documents_share_no_column(
    shared_run, recipe_for, started, tmp_path
):
    pipeline.run(
        recipe_for(started(tmp_path / "knn"), "compose.method=knn", "workers=1")
    )
    chunks, documents = (
        compare.row(measure(nextlong.open(run)))
        for run in (shared_run, tmp_path / "knn")
    )
    assert chunks["cosine_mean"] is not None
    assert documents["document_cosine_mean"] is not None
    for key, value in chunks.items():
        if "cosine" in key:
            assert value is None or documents[key] is None


def test_the_picture_shows_one_document_in_every_run(
    runs, recipe_for, tmp_path, capsys
):
    far = runs[1]
    for method in ("nextlong", "standard"):
        pipeline.run(recipe_for(far, f"compose.method={method}", f"name={method}"))
    picture = tmp_path / "one.svg"
    assert (
        cli_main.main(
            ["compare", f"{far}@nextlong", f"{far}@standard", "--svg", str(picture)]
        )
        == 0
    )
    svg = picture.read_text()
    assert re.search(r">nextlong</text>.*>standard</text>", svg, flags=re.DOTALL)
    name = re.search(r"<title>(.+), by nextlong, standard</title>", svg)[1]
    strips = set(
        re.findall(rf'y="(\d+)"[^>]*><title>(?:meta|document): {re.escape(name)},', svg)
    )
    assert len(strips) == 3, "the document itself, and its place in both sequences"


def test_a_picture_of_different_lengths_is_refused(runs, tmp_path, capsys):
    assert (
        cli_main.main(["compare", *map(str, runs), "--svg", str(tmp_path / "x.svg")])
        == 2
    )
    assert "1024, 2048" in capsys.readouterr().err
