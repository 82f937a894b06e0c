import json
import shutil

import pyarrow.parquet as pq

from exported_runs import breaches, folder_of


def test_files_and_columns_too_many_or_too_few(run):
    folder = folder_of(run, "parquet")
    shutil.copy(folder / "part-00000.parquet", folder / "part-00001.parquet")
    assert "part-00001.parquet lies among the files" in breaches(run)["parquet rows"][0]
    (folder_of(run, "jsonl") / "part-00000.jsonl").unlink()
    assert "No such file" in breaches(run)["jsonl rows"][0]
    path = folder_of(run, "axolotl") / "part-00000.parquet"
    pq.write_table(pq.read_table(path, columns=["input_ids", "labels"]), path)
    assert "has the columns ['input_ids', 'labels'], should have" in breaches(run)["axolotl rows"][0]


def test_rows_that_are_gone(packed):
    shutil.rmtree(
        next(
            packed.glob(
                "*-rows-" + json.loads((folder_of(packed, "axolotl") / "manifest.json").read_text())["inputs"]["rows"]
            )
        )
    )
    found = breaches(packed)
    assert found.pop("rows hold each sequence once")
    assert "axolotl rows" in found
    assert all("which are not there" in told for (told,) in found.values())
