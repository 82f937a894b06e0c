"""The table of gains: from the statistics of each method, into the page."""

import json
from pathlib import Path

from experiments import method_gains

DOCS = Path(__file__).parents[2] / "docs"


def stats(mean, gaps):
    return {
        "sequences": 3,
        "tokens": {"count": 7},
        "gain": {"mean": mean, "p50": 0.25},
        "standard_error": 0.125,
        "by_gap": [{"tokens": tokens, "gain": gain} for tokens, gain in gaps],
    }


def test_the_table_is_written_between_the_marks(tmp_path, capsys):
    gains = tmp_path / "gains"
    gains.mkdir()
    docs = tmp_path / "docs"
    (docs / "results").mkdir(parents=True)
    page = docs / "results.md"
    page.write_text(f"above\n{method_gains._BEGIN}\nold\n{method_gains._END}\nbelow\n")
    assert method_gains.main([str(gains), "--to", str(docs)]) == 2
    assert "NAME.json" in capsys.readouterr().err
    (gains / "a.json").write_text(json.dumps(stats(0.5, [(3, 1.0), (1, 2.0)])))
    (gains / "b.json").write_text(json.dumps(stats(1.5, [(1000, 2.0), (0, None)])))
    assert method_gains.main([str(gains), "--to", str(docs)]) == 0
    text = page.read_text()
    assert text.startswith("above\n")
    assert text.endswith("\nbelow\n")
    assert "old" not in text
    assert text.splitlines()[5:7] == [
        "| b | 3 | 7 | 1,000 | 1.50 ± 0.12 | 0.25 | 2.00 |",
        "| a | 3 | 7 | 4 | 0.50 ± 0.12 | 0.25 | 1.25 |",
    ]
    assert set(json.loads((docs / "results/method-gains.json").read_text())) == {
        "a",
        "b",
    }


def test_the_page_has_the_numbers_of_its_file():
    measured = json.loads((DOCS / "results/method-gains.json").read_text())
    assert method_gains.table(measured) in (DOCS / "results.md").read_text("utf-8")
