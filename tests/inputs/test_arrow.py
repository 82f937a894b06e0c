"""Arrow files and streams, and files that change while they are mapped."""

import subprocess
import sys

import pyarrow as pa
import pytest

from files_read import ITEMS, TABLE, arrow_file, read, summary
from nextlong.inputs.record import Record

CUT_WHILE_READ = """
import os, sys
from nextlong.errors import CorpusError
from nextlong.inputs.files import Part
from nextlong.inputs.listing import list_files
from nextlong.inputs.records import read_records
from nextlong.recipe import Source

source = Source(path=sys.argv[1])
(file,) = list_files(source, where="path")
records = read_records(Part(file), source, max_document_chars=99)
next(records)
os.truncate(file.path, 0)
try:
    print(sum(1 for _ in records))
except CorpusError as error:
    print(error)
"""


@pytest.mark.parametrize("layout", ["file", "stream"])
def test_an_arrow_file_that_is_cut_while_it_is_read_kills_no_process(tmp_path, layout):
    path = arrow_file(tmp_path / "a.arrow", pa.table({"text": ["line"] * 4_000, "n": range(4_000)}), layout=layout)
    ended = subprocess.run([sys.executable, "-c", CUT_WHILE_READ, path], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "a.arrow changed while it was read" in ended.stdout


@pytest.mark.parametrize("layout", ["file", "stream"])
def test_arrow_file_and_stream(tmp_path, layout):
    assert summary(read(arrow_file(tmp_path / "a.arrow", TABLE, layout=layout))) == ITEMS


def test_saved_dataset_folder(tmp_path):
    folder = tmp_path / "ds"
    folder.mkdir()
    arrow_file(folder / "data-00000-of-00001.arrow", TABLE, layout="stream")
    (folder / "state.json").write_text(
        '{"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": "f"}'
    )
    (folder / "dataset_info.json").write_text("{}")
    items = read(folder)
    assert [item.text for item in items if isinstance(item, Record)] == ["one", "two", "four"]
    assert items[1].source_id == "data-00000-of-00001.arrow:2"
