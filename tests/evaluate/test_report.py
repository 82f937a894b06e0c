"""Reports: tables as the paper lays them out, figures, and HELMET's own results read in."""

import io
import json

import pytest
from rich.console import Console

from nextlong.errors import EvaluateError
from nextlong.evaluate import results
from nextlong.evaluate.import_helmet import read_into
from nextlong.evaluate.report import paper, show, tables
from nextlong.evaluate.task import all_tasks

LENGTHS = (8192, 16_384, 32_768, 65_536, 131_072)


def write_results(folder, scores, *, label, cosine=None):
    """Write results in which a category's tasks all have its score less the number of the length."""
    folder.mkdir(parents=True)
    index = {"format": 1, "nextlong": "0", "model": {"name": "m", "label": label, "negatives_cosine": cosine}}
    (folder / "evaluation.json").write_text(json.dumps(index))
    for task in all_tasks().values():
        for number, length in enumerate(LENGTHS):
            if task.category in scores:
                samples = [{"details": {"shots": 100 * (number + 1)}, "scores": {}}]
                values = {
                    "task": task.name,
                    "length": length,
                    "score": scores[task.category] - number,
                    "samples": samples,
                }
                path = results.place_of(folder, task.name, length)
                path.parent.mkdir(exist_ok=True)
                path.write_text(json.dumps({"format": 1, **values}))
    return folder


SCORES = dict(zip(paper.CATEGORIES, (82.0, 60.0, 81.0, 31.0, 37.0, 81.0), strict=True))


@pytest.fixture
def two(tmp_path):
    return [
        write_results(tmp_path / "one", SCORES, label="first & best"),
        write_results(tmp_path / "two", {**SCORES, "RAG": 65.0, "Recall": 70.0}, label="second"),
    ]


def test_the_main_table_is_the_papers(two):
    main = next(iter(tables.all_tables([results.read_results(folder) for folder in two])))
    assert main.columns == ("Avg.", "Recall", "RAG", "ICL", "Re-rank", "LongQA", "RULER")
    assert main.rows[0] == ("first & best", (60.0, 80.0, 58.0, 79.0, 29.0, 35.0, 79.0))
    assert [main.is_best(0, column) for column in range(3)] == [True, True, False]
    assert main.is_best(1, 2)
    assert not any(main.is_best(row, 4) for row in range(2))  # they are equal there


def test_a_category_with_a_task_missing_has_no_score(two):
    (two[0] / "vt/8192.json").unlink()
    main, *others = tables.all_tables([results.read_results(two[0])])
    assert main.rows[0][1][0] is None
    assert main.rows[0][1][-1] is None
    assert any(table.title == "RULER, 12 of 13 tasks, by length" for table in others)


@pytest.mark.heavy
def test_reports_in_every_form(two, tmp_path):
    outputs = [tmp_path / f"table.{suffix}" for suffix in ("html", "md", "tex", "json")]
    show.report(two, outputs=outputs, figures=tmp_path / "figures", console=Console(file=io.StringIO()))
    html, markdown, latex, rows = (output.read_text() for output in outputs)
    assert "<td><b>60.00</b></td>" in html
    assert "first &amp; best" in html
    assert html.count("<svg") == 3
    assert "http" not in html.replace("http://www.w3.org/", "").replace("http://creativecommons.org", "").replace(
        "http://purl.org", ""
    )
    assert "| first & best | **60.00** | **80.00** |" in markdown
    assert r"first \& best & \textbf{60.00} & \textbf{80.00} & 58.00" in latex
    assert len(json.loads(rows)) == 2 * 5 * 30
    made = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert made == [
        f"{name}.{suffix}" for name in ("icl-by-shots", "score-by-length", "task-types") for suffix in ("png", "svg")
    ]


@pytest.mark.heavy
def test_the_same_results_give_the_same_bytes(two, tmp_path):
    for name in ("a", "b"):
        show.report(two, outputs=[tmp_path / f"{name}.html"], figures=None, console=Console(file=io.StringIO()))
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


@pytest.mark.heavy
def test_a_setting_in_the_labels_makes_curves(tmp_path):
    from nextlong.evaluate.report import figures

    folders = [
        write_results(tmp_path / str(size), SCORES, label=f"chunk.max_chars={size}") for size in (512, 1024, 2048)
    ]
    made = {figure.name: figure for figure in figures.all_figures([results.read_results(folder) for folder in folders])}
    assert "chunk.max_chars" in made["by-setting"].svg
    assert made["by-setting"].png.startswith(b"\x89PNG")


@pytest.mark.heavy
def test_the_negatives_similarity_is_drawn_where_runs_are_named(tmp_path):
    from nextlong.evaluate.report import figures

    kinds = {"top": 0.7, "random-retrieved": 0.5, "random-corpus": 0.1}
    folders = [write_results(tmp_path / kind, SCORES, label=kind, cosine=cosine) for kind, cosine in kinds.items()]
    made = {
        figure.name: figure.svg for figure in figures.all_figures([results.read_results(folder) for folder in folders])
    }
    assert "median cosine of the negatives" in made["similarity"]
    assert "0.70" in made["similarity"]


def test_copying_and_values_by_key_have_a_table(tmp_path):
    folder = write_results(tmp_path / "one", {}, label="one")
    for task, scores in (
        ("copying", {"gain_nats": 1.5, "gain_standard_error": 0.1, "with_copy_nats": 2.0, "without_copy_nats": 3.5}),
        ("key_values", {"accuracy": 87.5, "chance": 12.5}),
    ):
        path = results.place_of(folder, task, 8192)
        path.parent.mkdir()
        values = {"format": 1, "task": task, "length": 8192, "score": 1.0, "scores": scores, "samples": []}
        path.write_text(json.dumps(values))
    (table,) = tables.all_tables([results.read_results(folder)])
    assert table.rows == (("one, 8K", (1.5, 0.1, 2.0, 3.5, 87.5, 12.5)),)


def test_wrong_outputs_and_labels_are_told(two, tmp_path):
    console = Console(file=io.StringIO())
    with pytest.raises(EvaluateError, match=r"table\.pdf: end it in \.html, \.md, \.tex, \.json"):
        show.report(two, outputs=[tmp_path / "table.pdf"], figures=None, console=console)
    with pytest.raises(EvaluateError, match=r"none is not a folder"):
        show.report(two, outputs=[tmp_path / "none/table.md"], figures=None, console=console)
    with pytest.raises(EvaluateError, match=r"two results are called 'second'"):
        show.report([two[1], two[1]], outputs=[], figures=None, console=console)


def helmet_result(path, dataset, length, **metrics):
    arguments = {"datasets": dataset, "input_max_length": length, "model_name_or_path": "org/model-8B"}
    path.write_text(json.dumps({"args": arguments, "averaged_metrics": metrics, "data": [{}, {}]}))
    return path


def test_helmet_results_are_read_by_their_content(tmp_path):
    files = [
        helmet_result(tmp_path / "a.json", "kilt_nq", 8192, substring_exact_match=55.5, rougeL_f1=3.0),
        helmet_result(tmp_path / "b.json", "narrativeqa_130772", 131_072, **{"gpt-4-score": 1.5, "rougeL_f1": 20.0}),
        helmet_result(tmp_path / "c.json", "icl_nlu_510shot_balance", 8192, exact_match=70.0),
        helmet_result(tmp_path / "d.json", "ruler_niah_mk_2", 8192, ruler_recall=99.0),
    ]
    told = read_into(files, out=tmp_path / "out", label=None)
    assert told == f"read 4 files of org/model-8B into 5 results in {tmp_path / 'out'}"
    found = results.read_results(tmp_path / "out")
    assert found.name == "model-8B"
    got = {(one.task, one.length): one.score for one in found.finished}
    assert got == {
        ("nq", 8192): 55.5,
        ("narrativeqa", 131_072): 50.0,
        ("nlu", 8192): 70.0,
        ("ruler_mk_needle", 8192): 99.0,
        ("niah_multikey_2", 8192): 99.0,  # HELMET's averages count it under RULER too
    }


def test_what_is_no_helmet_result_is_told(tmp_path):
    (tmp_path / "x.json").write_text('{"exact_match": 5}')
    with pytest.raises(EvaluateError, match=r"x\.json is no result of HELMET's eval\.py"):
        read_into([tmp_path / "x.json"], out=tmp_path / "out", label=None)
    other = helmet_result(tmp_path / "y.json", "alce_asqa_700", 8192, str_em=1.0)
    with pytest.raises(EvaluateError, match="'alce_asqa_700' is none of the paper's"):
        read_into([other], out=tmp_path / "out", label=None)
    files = [helmet_result(tmp_path / f"{n}.json", "kilt_nq", 8192, substring_exact_match=n) for n in (1, 2)]
    with pytest.raises(EvaluateError, match=r"1\.json and .*2\.json are both nq at 8,192"):
        read_into(files, out=tmp_path / "out", label=None)


def test_every_helmet_name_is_a_task_of_ours():
    from nextlong.evaluate import import_helmet

    tasks = all_tasks()
    for _, name, metric, _ in import_helmet._NAMES:
        assert name in tasks
        assert tasks[name].category in paper.CATEGORIES
        assert metric


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"args": []}, "hold no fields"),
        ({"averaged_metrics": {"substring_exact_match": "high"}}, "no number in"),
        ({"args": {"datasets": "kilt_nq"}}, "no number in"),
    ],
)
def test_a_helmet_result_of_another_form_is_told(tmp_path, change, told):
    arguments = {"datasets": "kilt_nq", "model_name_or_path": "m", "input_max_length": 8192}
    record = {"args": arguments, "averaged_metrics": {"substring_exact_match": 50.0}}
    file = tmp_path / "result.json"
    file.write_text(json.dumps(record))
    read_into([file], out=tmp_path / "good", label=None)
    file.write_text(json.dumps(record | change))
    with pytest.raises(EvaluateError, match=rf"result\.json: .*{told}"):
        read_into([file], out=tmp_path / "r", label=None)
