import io

import pytest
from rich.console import Console

from nextlong.evaluate.report import show


@pytest.mark.heavy
def test_the_same_results_give_the_same_bytes(two, tmp_path):
    for name in ("a", "b"):
        show.report(two, outputs=[tmp_path / f"{name}.html"], figures=None, console=Console(file=io.StringIO()))
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
