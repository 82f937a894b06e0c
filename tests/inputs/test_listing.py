import gzip
import json

import pyarrow as pa
import pytest

from nextlong.errors import CorpusError
from nextlong.inputs.listing import list_files
from nextlong.recipe import Source

WHERE = "ingest.sources[0].path"


def listed(path, **options):
    return list_files(Source(path=str(path), **options), where=WHERE)


def names(path, **options):
    return [file.name for file in listed(path, **options)]


def write(path, content="{}\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def save_like_datasets(folder, texts, *, state=None):
    folder.mkdir(parents=True)
    table = pa.table({"text": texts})
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    described = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": "f", "_split": None}
    (folder / "state.json").write_text(json.dumps({**described, **(state or {})}))
    (folder / "dataset_info.json").write_text("{}")


def test_single_file_has_absolute_path_size_and_base_name(tmp_path, monkeypatch):
    write(tmp_path / "a.jsonl", '{"text":"x"}\n')
    monkeypatch.chdir(tmp_path)
    (file,) = listed("a.jsonl")
    assert (file.path, file.bytes, file.name) == (str(tmp_path / "a.jsonl"), 13, "a.jsonl")


def test_folder_is_read_below_sorted_and_without_hidden_or_side_files(tmp_path):
    for name in (
        "b.jsonl",
        "a/z.parquet",
        "a/c.txt",
        ".hidden.jsonl",
        ".git/x.jsonl",
        "README.md",
        "dataset_info.json",
        "x.bin",
    ):
        write(tmp_path / name)
    assert names(tmp_path) == ["a/c.txt", "a/z.parquet", "b.jsonl"]


def test_folder_of_plain_text_keeps_its_readme(tmp_path):
    write(tmp_path / "README.md")
    write(tmp_path / "b.txt.gz", gzip.compress(b"x"))
    assert names(tmp_path) == ["README.md", "b.txt.gz"]


def test_glob_names_are_relative_to_its_fixed_part(tmp_path):
    for name in ("x/one.jsonl", "y/two.jsonl", "y/three.txt", "y/._two.jsonl"):
        write(tmp_path / name)
    assert names(tmp_path / "*" / "*.jsonl") == ["x/one.jsonl", "y/two.jsonl"]


def test_file_whose_name_looks_like_a_glob_is_that_file(tmp_path):
    write(tmp_path / "data[1].jsonl")
    write(tmp_path / "data1.jsonl")
    assert names(tmp_path / "data[1].jsonl") == ["data[1].jsonl"]


def test_format_in_the_recipe_covers_files_of_any_name(tmp_path):
    write(tmp_path / "part-00000")
    assert names(tmp_path / "part-*", format="jsonl") == ["part-00000"]


def test_saved_dataset_gives_its_data_files_and_no_cache(tmp_path):
    save_like_datasets(tmp_path / "ds", ["x"])
    write(tmp_path / "ds" / "cache-1234.arrow", b"left behind by map")
    assert names(tmp_path / "ds") == ["data-00000-of-00001.arrow"]


def test_saved_dataset_dict_gives_every_split(tmp_path):
    save_like_datasets(tmp_path / "dd" / "train", ["x"])
    save_like_datasets(tmp_path / "dd" / "test", ["y"])
    write(tmp_path / "dd" / "dataset_dict.json", '{"splits": ["train", "test"]}')
    assert names(tmp_path / "dd") == ["test/data-00000-of-00001.arrow", "train/data-00000-of-00001.arrow"]


@pytest.mark.parametrize("sign", ["state", "file"])
def test_saved_dataset_with_indices_is_refused_with_its_cure(tmp_path, sign):
    save_like_datasets(
        tmp_path / "ds", ["x"], state={"_indices_files": [{"filename": "i.arrow"}]} if sign == "state" else {}
    )
    if sign == "file":
        write(tmp_path / "ds" / "indices.arrow", b"x")
    with pytest.raises(CorpusError, match=r"flatten_indices\(\)"):
        listed(tmp_path / "ds")


def test_saved_dataset_with_a_missing_file_is_refused(tmp_path):
    save_like_datasets(tmp_path / "ds", ["x"])
    (tmp_path / "ds" / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(CorpusError, match="data-00000-of-00001.arrow, which is not there"):
        listed(tmp_path / "ds")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing.jsonl", "missing.jsonl' does not exist"),
        ("*.parquet", r"\*.parquet' matches no file"),
        ("*.bin", "no file of a known format, only such as 'x.bin'"),
        ("x.bin", "no file of a known format"),
        ("empty", "empty' is an empty folder"),
    ],
)
def test_path_that_reaches_nothing_names_the_key_and_the_value(tmp_path, path, message):
    write(tmp_path / "x.bin")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match=message) as caught:
        listed(tmp_path / path)
    assert str(caught.value).startswith(f"{WHERE}=")
