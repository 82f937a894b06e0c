import io
import json

import pytest
from rich.console import Console

from nextlong.errors import EvaluateError
from nextlong.evaluate.report import show


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


def test_wrong_outputs_and_labels_are_told(two, tmp_path):
    console = Console(file=io.StringIO())
    with pytest.raises(EvaluateError, match=r"table\.pdf: end it in \.html, \.md, \.tex, \.json"):
        show.report(two, outputs=[tmp_path / "table.pdf"], figures=None, console=console)
    with pytest.raises(EvaluateError, match=r"none is not a folder"):
        show.report(two, outputs=[tmp_path / "none/table.md"], figures=None, console=console)
    with pytest.raises(EvaluateError, match=r"two results are called 'second'"):
        show.report([two[1], two[1]], outputs=[], figures=None, console=console)
