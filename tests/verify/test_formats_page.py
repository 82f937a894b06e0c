"""The Python snippets of docs/formats.md about one format each, run beside an exported run; those of other trainers' libraries run in tests/readers."""

import re
import shutil
from pathlib import Path

import pytest

from nextlong.runs import export as runs_export

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"


def snippets():
    """Return the blocks of Python by the format whose folder they read.

    Those of the section about `RUN/data` are tested in tests/test_formats_page.py.
    """
    _, _, page = PAGE.read_text("utf-8").partition("## RUN/data: ")
    _, _, formats = page.partition("\n## ")
    blocks = re.findall(r"```python\n(.*?)```", formats, flags=re.DOTALL)
    return {re.search(r"RUN/data/(\w+)", block)[1]: block for block in blocks}


def test_every_format_of_a_library_has_a_snippet():
    libraries = {"parquet", "arrow", "mds", "megatron", "reconstruction"}
    assert snippets().keys() == libraries


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["parquet", "arrow"])
def test_datasets_reads_the_first_row_as_the_page_says(
    exported_run, monkeypatch, tmp_path, name
):
    run = shutil.copytree(exported_run, tmp_path / "RUN")
    runs_export.export([run], formats=[name], overrides=["workers=1"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    names = {}
    exec(snippets()[name], names)
    row = next(iter(names["rows"]))
    assert len(row["input_ids"]) == row["length"] > 0
