"""The code of docs/formats.md that opens `RUN/data` is run as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nextlong.cli.main import main

PAGE = Path(__file__).parents[1] / "docs" / "formats.md"
SECTION = PAGE.read_text(encoding="utf-8").partition("## RUN/data: ")[2]
SECTION = SECTION.partition("\n## ")[0]
BLOCKS = re.findall(r"```python\n(.*?)```", SECTION, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("package", "expected"),
    [
        pytest.param("datasets", r"\[\d+, .*\]\n", marks=pytest.mark.heavy),
        ("duckdb", r"(?s).*domain.*source_id.*score"),
    ],
)
def test_the_rows_open_as_documented(package, expected, own_few_run, tmp_path):
    (block,) = [text for text in BLOCKS if f"{package} " in f"{text.split()[1]} "]
    assert main(["export", str(own_few_run), "--to", "parquet"]) == 0
    (tmp_path / "RUN").symlink_to(own_few_run)
    (tmp_path / "example.py").write_text(block, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env=os.environ | {"HF_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.match(expected, done.stdout)
