"""Tables and figures of results, as files of every form."""

import io
import json
import os
import re

import pytest
from rich.console import Console
from tests.support.written_results import (
    LENGTHS,
    QUESTIONS,
    SCORES,
    write_result,
    write_results,
)

from nextlong.errors import EvaluateError
from nextlong.evaluate import report


@pytest.mark.heavy
def test_a_setting_in_the_labels_makes_curves(tmp_path):
    folders = [
        write_results(tmp_path / str(size), SCORES, label=f"chunk.max_chars={size}")
        for size in (512, 1024, 2048)
    ]
    made = report._all_figures(report.read(folders))
    assert "chunk.max_chars" in made["by-setting"].svg
    assert made["by-setting"].png.startswith(b"\x89PNG")


@pytest.mark.heavy
def test_the_negatives_similarity_is_drawn_where_runs_are_named(tmp_path):
    kinds = {"top": 0.7, "random-retrieved": 0.5, "random-corpus": 0.1}
    folders = [
        write_results(tmp_path / kind, SCORES, label=kind, cosine=cosine)
        for kind, cosine in kinds.items()
    ]
    made = report._all_figures(report.read(folders))
    assert "median cosine of the negatives" in made["similarity"].svg
    assert "0.70" in made["similarity"].svg


@pytest.mark.heavy
def test_needles_attention_with_longqa_and_dependence_are_drawn(tmp_path):
    folder = write_results(tmp_path / "one", {"LongQA": 40.0}, label="a model")
    found = [
        {"details": {"depth": depth}, "scores": {"found": float(depth < 60)}}
        for depth in (0.0, 50.0, 100.0)
    ]
    write_result(
        folder, "needle", 8192, score=66.7, samples=[*found, {"refused": True}]
    )
    write_result(folder, "attention", 8192, score=31.25)
    distances = [
        {
            "from_tokens": low,
            "to_tokens": 2 * low,
            "chunks": 3,
            "gain_nats": gain,
            "interval": [gain - 0.1, gain + 0.2],
        }
        for low, gain in ((64, 0.5), (128, 0.25))
    ]
    write_result(folder, "dependency", None, score=0.4, by_distance=distances)
    made = report._all_figures(report.read([folder]))
    assert {"needle-a-model", "attention-longqa", "dependence"} <= set(made)
    assert "tokens to the nearest earlier meta-chunk" in made["dependence"].svg
    assert [
        ">100<" in made["needle-a-model"].svg,
        ">50 %<" in made["needle-a-model"].svg,
    ] == [True, True]
    assert ">31.25<" in made["attention-longqa"].svg
    assert "LongQA, percent" in made["attention-longqa"].svg


@pytest.mark.heavy
def test_bars_of_nothing_but_zeros_and_two_numbers_of_shots_have_whole_axes(tmp_path):
    folder = write_results(tmp_path / "one", {"ICL": 4.0}, label="one")  # 4 down to 0
    for length in LENGTHS[:3]:
        for path in folder.glob(f"*/{length}.json"):
            path.unlink()
    made = report._all_figures(report.read([folder]))
    assert ">400<" in made["icl-by-shots"].svg
    assert ">500<" in made["icl-by-shots"].svg
    assert ">100<" in made["task-types"].svg


@pytest.mark.heavy
def test_reports_in_every_form(two, tmp_path):
    outputs = [tmp_path / f"table.{suffix}" for suffix in ("html", "md", "tex")]
    report.write(
        report.read(two),
        outputs=outputs,
        figures=tmp_path / "figures",
        console=Console(file=io.StringIO()),
    )
    html, markdown, latex = (output.read_text() for output in outputs)
    assert re.search(r"<td><b>60\.00 \[59\.\d, 60\.\d\]</b></td>", html)
    assert "first &amp; best" in html
    assert html.count("<svg") == 3
    assert "http" not in html.replace("http://www.w3.org/", "").replace(
        "http://creativecommons.org", ""
    ).replace("http://purl.org", "")
    assert re.search(
        r"\| first & best \| \*\*60\.00 \[.*?\]\*\* \| \*\*80\.00 \[.*?\]\*\* \| 58\.00 \[",
        markdown,
    )
    assert re.search(
        r"first \\& best & \\textbf\{60\.00 \[.*?\]\} & \\textbf\{80\.00 \[.*?\]\} & 58\.00 \[",
        latex,
    )
    rows = report.as_json(report.read(two))
    assert len(rows) == 2 * 5 * 30
    assert {row["n"] for row in rows} == {QUESTIONS}
    made = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert made == [
        f"{name}.{suffix}"
        for name in ("icl-by-shots", "score-by-length", "task-types")
        for suffix in ("png", "svg")
    ]


def test_a_write_that_is_interrupted_keeps_the_old_picture(two, tmp_path, monkeypatch):
    figures, results, fsync = tmp_path / "figures", report.read(two), os.fsync

    def write(png):
        monkeypatch.setattr(
            report,
            "_all_figures",
            lambda _: {"one": report._Figure("One", "<svg/>", png)},
        )
        report.write(
            results, outputs=[], figures=figures, console=Console(file=io.StringIO())
        )

    def interrupted(file):
        if list(
            figures.glob(".one.png.*")
        ):  # the new picture is written, and not yet in its place
            raise KeyboardInterrupt
        fsync(file)

    write(b"old")
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(b"new")
    assert (figures / "one.png").read_bytes() == b"old"
    assert sorted(path.name for path in figures.iterdir()) == ["one.png", "one.svg"]


def test_wrong_outputs_and_labels_are_told(two, tmp_path):
    console = Console(file=io.StringIO())
    for output in (tmp_path / "table.pdf", tmp_path / "none/table.md"):
        with pytest.raises(EvaluateError) as error:
            report.write(
                report.read(two), outputs=[output], figures=None, console=console
            )
        assert error.value.where == f"--output {output}"
    with pytest.raises(EvaluateError, match="'second'") as error:
        report.read([two[1], two[1]])
    assert "--label" in error.value.fix


def test_results_of_different_n_are_refused_and_with_mixed_not_bold(two, tmp_path):
    out, console = tmp_path / "table.md", Console(file=io.StringIO())
    few = [{"scores": {"m": 1.0}}] * 5
    write_result(
        two[0], "vt", 8192, metric="m", score=100.0, n=5, refused=0, samples=few
    )
    with pytest.raises(EvaluateError, match="n 5 and 100") as error:
        report.write(report.read(two), outputs=[out], figures=None, console=console)
    assert error.value.where == "vt at 8K"
    assert not out.exists()
    report.write(
        report.read(two, protocols="mixed"),
        outputs=[out],
        figures=None,
        console=console,
    )
    ruler = out.read_text().split("## RULER, by length")[1].split("## ")[0]
    assert "Mixed protocols, so no score is bold: vt at 8K" in ruler
    assert "**" not in ruler
    assert "| first & best | 82.46 [" in ruler
    assert "1,205–1,300 |" in ruler


@pytest.mark.heavy
def test_the_same_results_give_the_same_bytes(two, tmp_path):
    for name in ("a", "b"):
        report.write(
            report.read(two),
            outputs=[tmp_path / f"{name}.html"],
            figures=None,
            console=Console(file=io.StringIO()),
        )
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_two_folders_of_one_model_are_one_row(tmp_path):
    folders = [
        write_results(tmp_path / "a", {"RULER": 80.0}, label="one"),
        write_results(tmp_path / "b", {"LongQA": 40.0}, label="one"),
        write_results(tmp_path / "c", {"LongQA": 20.0, "RULER": 70.0}, label="two"),
    ]
    joined = report.read(folders)
    assert [model.name for model in joined] == ["one", "two"]
    assert len(joined[0].finished) == len(joined[1].finished)
    whole = write_results(tmp_path / "d", {"LongQA": 40.0, "RULER": 80.0}, label="one")
    rows = [
        sorted(report.as_json(models), key=lambda row: (row["task"], row["length"]))
        for models in (joined[:1], report.read([whole]))
    ]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("weights", ["a", None])
def test_two_models_of_one_label_are_refused(weights, tmp_path):
    """By their weights, or by a task that both hold."""
    scores = {"RULER": 80.0} if weights is None else {"LongQA": 40.0}
    folders = [
        write_results(tmp_path / "a", {"RULER": 80.0}, label="one"),
        write_results(tmp_path / "b", scores, label="one"),
    ]
    for folder, hashed in zip(folders, ("b", weights), strict=True):
        index = folder / "evaluation.json"
        values = json.loads(index.read_text())
        values["model"]["weights"] = hashed
        index.write_text(json.dumps(values))
    with pytest.raises(EvaluateError) as error:
        report.read(folders)
    assert error.value.where == str(folders[1])
