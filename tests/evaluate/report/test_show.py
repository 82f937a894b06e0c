import io
import json
import re

import pytest
from rich.console import Console

from nextlong.errors import EvaluateError
from nextlong.evaluate.report import show
from written_results import QUESTIONS, write_result


@pytest.mark.heavy
def test_reports_in_every_form(two, tmp_path):
    outputs = [tmp_path / f"table.{suffix}" for suffix in ("html", "md", "tex", "json")]
    show.report(two, outputs=outputs, figures=tmp_path / "figures", console=Console(file=io.StringIO()))
    html, markdown, latex, rows = (output.read_text() for output in outputs)
    assert re.search(r"<td><b>60\.00 \[59\.\d, 60\.\d\]</b></td>", html)
    assert "first &amp; best" in html
    assert html.count("<svg") == 3
    assert "http" not in html.replace("http://www.w3.org/", "").replace("http://creativecommons.org", "").replace(
        "http://purl.org", ""
    )
    assert re.search(r"\| first & best \| \*\*60\.00 \[.*?\]\*\* \| \*\*80\.00 \[.*?\]\*\* \| 58\.00 \[", markdown)
    assert re.search(r"first \\& best & \\textbf\{60\.00 \[.*?\]\} & \\textbf\{80\.00 \[.*?\]\} & 58\.00 \[", latex)
    assert len(json.loads(rows)) == 2 * 5 * 30
    assert {row["n"] for row in json.loads(rows)} == {QUESTIONS}
    made = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert made == [
        f"{name}.{suffix}" for name in ("icl-by-shots", "score-by-length", "task-types") for suffix in ("png", "svg")
    ]


def test_wrong_outputs_and_labels_are_told(two, tmp_path):
    console = Console(file=io.StringIO())
    with pytest.raises(EvaluateError, match=r"table\.pdf: end it in \.html, \.md, \.tex, \.json"):
        show.report(two, outputs=[tmp_path / "table.pdf"], figures=None, console=console)
    with pytest.raises(EvaluateError, match=r"none is not a folder"):
        show.report(two, outputs=[tmp_path / "none/table.md"], figures=None, console=console)
    with pytest.raises(EvaluateError, match=r"two results have the label 'second'"):
        show.report([two[1], two[1]], outputs=[], figures=None, console=console)


def test_results_of_different_n_are_refused_and_with_mixed_not_bold(two, tmp_path):
    out, console = tmp_path / "table.md", Console(file=io.StringIO())
    few = [{"scores": {"m": 1.0}}] * 5
    write_result(two[0], "vt", 8192, metric="m", score=100.0, n=5, refused=0, samples=few)
    with pytest.raises(EvaluateError, match=r"vt at 8K: first & best and second have n 5 and 100; .*--mixed"):
        show.report(two, outputs=[out], figures=None, console=console)
    assert not out.exists()
    show.report(two, outputs=[out], figures=None, console=console, protocols="mixed")
    ruler = out.read_text().split("## RULER, by length")[1].split("## ")[0]
    assert "Mixed protocols, so no score is bold: vt at 8K" in ruler
    assert "**" not in ruler
    assert "| first & best | 82.46 [" in ruler
    assert "1,205–1,300 |" in ruler


@pytest.mark.heavy
def test_the_same_results_give_the_same_bytes(two, tmp_path):
    for name in ("a", "b"):
        show.report(two, outputs=[tmp_path / f"{name}.html"], figures=None, console=Console(file=io.StringIO()))
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
