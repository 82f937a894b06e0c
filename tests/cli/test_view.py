import pytest

from nextlong.cli import view
from nextlong.cli.main import main


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_what_serves_the_pages_is_named_where_it_is_missing(monkeypatch, capsys, missing):
    monkeypatch.setattr(view, "find_spec", lambda name: None if name == missing else name)
    assert main(["view", "run"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"{missing}, which serves the pages, is not installed; say: pip install 'nextlong[view]'" in told
