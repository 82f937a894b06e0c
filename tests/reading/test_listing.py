"""Which files a path, folder or glob reaches."""

import gzip
import json
import os
import socket
import sys
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest

from nextlong.cli.main import main
from nextlong.engine.step import Artifact
from nextlong.errors import CorpusError, RunError
from nextlong.reading import listing
from nextlong.reading.files import check_unchanged
from nextlong.reading.listing import check_apart, input_files, list_files, reaches
from nextlong.recipe import Recipe, Source

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
    described = {
        "_data_files": [{"filename": "data-00000-of-00001.arrow"}],
        "_fingerprint": "f",
        "_split": None,
    }
    (folder / "state.json").write_text(json.dumps({**described, **(state or {})}))
    (folder / "dataset_info.json").write_text("{}")


def test_single_file_has_absolute_path_size_and_base_name(tmp_path, monkeypatch):
    write(tmp_path / "a.jsonl", '{"text":"x"}\n')
    monkeypatch.chdir(tmp_path)
    (file,) = listed("a.jsonl")
    assert (file.path, file.bytes, file.name) == (
        str(tmp_path / "a.jsonl"),
        13,
        "a.jsonl",
    )


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
    for name in ("README.md", "LICENSE.txt"):
        write(tmp_path / name)
    assert names(tmp_path / "*", format="jsonl") == ["part-00000"]
    assert names(tmp_path / "*", format="text") == [
        "LICENSE.txt",
        "README.md",
        "part-00000",
    ]


def test_saved_dataset_gives_its_data_files_and_no_cache(tmp_path):
    save_like_datasets(tmp_path / "ds", ["x"])
    write(tmp_path / "ds" / "cache-1234.arrow", b"left behind by map")
    assert names(tmp_path / "ds") == ["data-00000-of-00001.arrow"]


def test_saved_dataset_dict_gives_the_split_that_is_asked_for(tmp_path):
    save_like_datasets(tmp_path / "dd" / "train", ["x"])
    save_like_datasets(tmp_path / "dd" / "test", ["y"])
    write(tmp_path / "dd" / "dataset_dict.json", '{"splits": ["train", "test"]}')
    train, test = (f"{split}/data-00000-of-00001.arrow" for split in ("train", "test"))
    assert names(tmp_path / "dd") == [train]
    assert names(tmp_path / "dd", split="test") == [test]
    assert names(tmp_path / "dd", split="all") == [test, train]


@pytest.mark.parametrize("sign", ["state", "file"])
def test_saved_dataset_with_indices_is_refused_with_its_cure(tmp_path, sign):
    save_like_datasets(
        tmp_path / "ds",
        ["x"],
        state={"_indices_files": [{"filename": "i.arrow"}]} if sign == "state" else {},
    )
    if sign == "file":
        write(tmp_path / "ds" / "indices.arrow", b"x")
    with pytest.raises(CorpusError, match=r"flatten_indices\(\)"):
        listed(tmp_path / "ds")


def test_saved_dataset_with_a_missing_file_is_refused(tmp_path):
    save_like_datasets(tmp_path / "ds", ["x"])
    (tmp_path / "ds" / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(CorpusError, match=r"data-00000-of-00001\.arrow") as caught:
        listed(tmp_path / "ds")
    assert caught.value.where == str(tmp_path / "ds" / "state.json")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing.jsonl", "missing.jsonl' does not exist"),
        ("*.parquet", r"\*.parquet' matches no file"),
        ("*.bin", "no file of a supported format, only files such as 'x.bin'"),
        ("x.bin", "has an unsupported extension"),
        ("empty", "empty' is an empty folder"),
    ],
)
def test_path_that_reaches_nothing_names_the_key_and_the_value(tmp_path, path, message):
    write(tmp_path / "x.bin")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match=message) as caught:
        listed(tmp_path / path)
    assert str(caught.value).startswith(f"{WHERE}=")


LONG_AGO = (1_000_000_000, 1_000_000_000)


def names_of(path):
    return [file.name for file in list_files(Source(path=str(path)), where="here")]


@pytest.fixture
def hub(tmp_path):
    """A folder as the hub's cache has it: links to blobs that are older than they are."""
    (tmp_path / "blobs").mkdir()
    data = tmp_path / "snapshots" / "main" / "data"
    data.mkdir(parents=True)
    for number in range(3):
        blob = tmp_path / "blobs" / f"{number:040x}"
        blob.write_text('{"text": "x"}\n')
        os.utime(blob, LONG_AGO)
        (data / f"{number}.jsonl").symlink_to(f"../../../blobs/{blob.name}")
    return tmp_path


@pytest.mark.parametrize(
    "asked", ["", "/data", "/data/*.jsonl", "/**/*.jsonl", "/data/1.jsonl"]
)
def test_a_file_behind_a_link_is_what_it_was_when_it_is_read(hub, asked):
    files = list_files(Source(path=f"{hub}/snapshots/main{asked}"), where="here")
    assert len(files) == (1 if asked.endswith("1.jsonl") else 3)
    assert {file.bytes for file in files} == {14}
    for file in files:
        check_unchanged(file)
    target = hub / "blobs" / f"{1:040x}"
    os.utime(target, (2_000_000_000, 2_000_000_000))
    with pytest.raises(CorpusError, match="changed while"):
        [check_unchanged(file) for file in files]


def test_folders_behind_links_are_read_once_and_never_for_ever(tmp_path):
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "elsewhere" / "deep" / "b.jsonl").touch()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").touch()
    (tmp_path / "in" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "again").symlink_to(tmp_path / "in")
    (tmp_path / "elsewhere" / "deep" / "back").symlink_to(tmp_path / "in")
    assert names_of(tmp_path / "in") == ["a.jsonl", "more/deep/b.jsonl"]


def test_a_link_to_nothing_is_named_where_it_would_be_read(tmp_path):
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "notes").symlink_to(tmp_path / "gone")
    assert names_of(tmp_path) == ["a.jsonl"]
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "gone")
    with pytest.raises(
        CorpusError,
        match=r"b\.jsonl .*broken link",
    ):
        names_of(tmp_path)


@pytest.mark.parametrize("asked", ["{0}/x.jsonl", "{0}", "{0}/*.jsonl"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, capsys, asked):
    os.mkfifo(tmp_path / "x.jsonl")
    recipe = tmp_path / "r.yaml"
    source = f"{{path: '{asked.format(tmp_path)}'}}"
    recipe.write_text(
        f"run_dir: {tmp_path}-run\ningest: {{sources: [{source}]}}\ntokenizer: {{train: 300}}\n"
    )
    for command in ("plan", "run"):
        assert main([command, str(recipe)]) == 2
        err = capsys.readouterr().err
        assert f"{tmp_path}/x.jsonl " in err
        assert "a pipe;" in err


def test_sockets_and_devices_are_refused(tmp_path):
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(str(tmp_path / "s.jsonl"))
        with pytest.raises(CorpusError, match="a socket"):
            names_of(tmp_path / "s.jsonl")
    with pytest.raises(CorpusError, match="a device"):
        list_files(Source(path="/dev/zero", format="text"), where="here")


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("{0}", True),
        ("{0}/*", True),  # which takes in the folder
        ("{0}/**/*.json", True),
        ("{0}/**/*.parquet", True),
        ("{0}/*/*.jsonl", True),
        ("{0}/*.jsonl", False),
        ("{0}/a.jsonl", False),
        ("{0}/other/**", False),
        ("{0}-other", False),
    ],
)
def test_a_run_dir_inside_a_source_is_seen_before_it_is_made(tmp_path, path, inside):
    assert reaches(Source(path=path.format(tmp_path)), tmp_path / "run") is inside
    assert not reaches(Source(path=str(tmp_path)), tmp_path / ".hidden" / "run")
    assert not reaches(Source(path=str(tmp_path)), tmp_path.parent / "run")


def test_a_run_inside_its_source_is_refused_at_once_and_leaves_nothing(
    tmp_path, capsys
):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        f"run_dir: {tmp_path}/run\ningest: {{sources: [{{path: {tmp_path}}}]}}\ntokenizer: {{train: 300}}\n"
    )
    for command in ("plan", "run"):
        assert main([command, str(recipe)]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"error: run_dir={tmp_path}/run ")
        assert f"ingest.sources[0].path='{tmp_path}'" in err
    assert not (tmp_path / "run").exists()


def test_a_recipe_that_init_writes_into_its_corpus_runs_elsewhere(tmp_path, capsys):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.jsonl").write_text('{"text": "x"}\n')
    assert main(["init", str(corpus / "my.yaml"), str(corpus)]) == 0
    capsys.readouterr()
    recipe = Recipe.load(corpus / "my.yaml")
    assert recipe.run_dir == str(tmp_path / "runs" / "my")
    check_apart(recipe.ingest.sources, run_dir=str(tmp_path / "runs" / "my"))
    assert len(input_files(recipe.ingest)[0]) == 1
    with pytest.raises(RunError, match="is inside"):
        check_apart(recipe.ingest.sources, run_dir=str(corpus / "runs"))


def test_identity_changes_with_content_of_equal_size(tmp_path):
    path = write(tmp_path / "a.txt", "one")
    os.utime(path, ns=(0, 1_000_000_000))
    (before,) = listed(path)
    write(path, "two")
    os.utime(path, ns=(0, 2_000_000_000))
    (after,) = listed(path)
    assert before.bytes == after.bytes
    assert before.version != after.version


def test_unknown_protocol_is_named():
    with pytest.raises(CorpusError, match="nonsense"):
        listed("nonsense://bucket/x.jsonl")


def test_missing_package_for_a_known_protocol_names_the_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as if it were not installed
    with pytest.raises(CorpusError, match=r"pip install 'nextlong\[s3\]'"):
        listed("s3://bucket/x.jsonl")


def test_memory_file_system_lists_full_urls():
    fs = fsspec.filesystem("memory")
    fs.pipe("/listing/b.jsonl", b"{}\n")
    fs.pipe("/listing/sub/a.jsonl", b"{}\n")
    files = listed("memory://listing")
    assert [(file.path, file.name) for file in files] == [
        ("memory:///listing/b.jsonl", "b.jsonl"),
        ("memory:///listing/sub/a.jsonl", "sub/a.jsonl"),
    ]
    assert [file.name for file in listed("memory://listing/*.jsonl")] == ["b.jsonl"]


# Inputs that a run directory has read are recognised by their bytes, whatever their
# modification time


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.txt").write_text(f"text of {name}")
    return folder


def own_files(source):
    return [list_files(source, where="ingest.sources[0].path")]


def remember(source, run_dir, files=None):
    """Remember the files as an ingest does, in two tasks."""
    files, run_dir = files or own_files(source), run_dir / "run"
    run_dir.mkdir(exist_ok=True)
    told = {
        "documents": 1,
        "text_bytes": 1,
        "chars": 1,
        "rejects": 0,
        "reject_reasons": {},
        "example": "",
        "shards": 1,
    }
    parts = [
        {"counts": told | {"input_hashes": [listing.hash_of(file)]}}
        for own in files
        for file in own
    ]
    done = Artifact("ingest", run_dir, {"parts": parts})
    listing.remember(done, sources=[source], files=files, run_dir=run_dir)


def recognise(source, run_dir, files=None):
    """Return the files under the identities that the run directory knows, and the first change that it is told, if any."""
    files, run_dir = own_files(source) if files is None else files, run_dir / "run"
    (known,) = listing.recognise_inputs(
        [source], files, run_dir, changed_inputs="accept"
    )
    try:
        listing.recognise_inputs([source], files, run_dir)
    except RunError as error:
        return known, error.problem.partition(" read them: ")[2]
    return known, ""


def overwrite(path, text):
    path.write_text(text)
    os.utime(path, (1, 1))


def test_files_of_a_new_directory_are_as_they_were_listed(corpus, tmp_path):
    source = Source(path=str(corpus))
    assert recognise(source, tmp_path) == (own_files(source)[0], "")


def test_a_file_of_another_time_keeps_its_identity(corpus, tmp_path):
    source = Source(path=str(corpus))
    before = [file.identity for file in own_files(source)[0]]
    remember(source, tmp_path)
    os.utime(corpus / "a.txt", (1, 1))
    files, changes = recognise(source, tmp_path)
    assert changes == ""
    assert [file.identity for file in files] == before
    assert files[0].version == "9:1.0"


def test_a_touched_file_is_hashed_once(corpus, tmp_path, monkeypatch):
    source = Source(path=str(corpus))
    before = [file.identity for file in own_files(source)[0]]
    remember(source, tmp_path)
    os.utime(corpus / "a.txt", (1, 1))
    remember(source, tmp_path, files=[recognise(source, tmp_path)[0]])
    hashed = []
    monkeypatch.setattr(listing, "hash_of", lambda file: hashed.append(file.name))
    files, changes = recognise(source, tmp_path)
    assert (hashed, changes) == ([], "")
    assert [file.identity for file in files] == before
    os.utime(corpus / "b.txt", (1, 1))
    recognise(source, tmp_path)
    assert hashed == ["b.txt"] * 2  # once for each of two calls


def test_each_change_is_told_in_words(corpus, tmp_path):
    source = Source(path=str(corpus))
    remember(source, tmp_path)
    overwrite(corpus / "a.txt", "text of b")
    (corpus / "b.txt").unlink()
    change = recognise(source, tmp_path)[1]
    assert change.startswith(f"{corpus}/a.txt has ")
    assert change.endswith("(9 bytes), and 1 other file")
    overwrite(corpus / "a.txt", "text of a and more")
    assert recognise(source, tmp_path)[1].startswith(f"{corpus}/a.txt has 18 bytes")
    (corpus / "a.txt").write_text("text of a")
    assert recognise(source, tmp_path)[1].startswith(f"b.txt of {corpus} is missing")


def test_changed_content_under_the_first_time_is_a_change_too(corpus, tmp_path):
    source = Source(path=str(corpus / "a.txt"))
    os.utime(corpus / "a.txt", (5, 5))
    remember(source, tmp_path)
    os.utime(corpus / "a.txt", (6, 6))
    remember(source, tmp_path, files=[recognise(source, tmp_path)[0]])
    (corpus / "a.txt").write_text("text of z")
    os.utime(corpus / "a.txt", (5, 5))
    change = recognise(source, tmp_path)[1]
    assert change.startswith(f"{corpus}/a.txt has ")
    assert change.endswith("(9 bytes)")


def test_a_source_of_one_file_is_named_once(corpus, tmp_path):
    source = Source(path=str(corpus / "a.txt"))
    remember(source, tmp_path)
    (corpus / "a.txt").rename(corpus / "c.txt")
    files, change = recognise(source, tmp_path, [[]])
    assert files == []
    assert change.startswith(f"{corpus}/a.txt is ")


def test_files_elsewhere_go_by_their_version(tmp_path):
    memory = fsspec.filesystem("memory")
    memory.pipe("/inputs/a.txt", b"text")
    source = Source(path="memory://inputs/a.txt")
    remember(source, tmp_path)
    assert (
        json.loads(Path(tmp_path, "run", "inputs.json").read_text())[source.path][
            "a.txt"
        ]["xxh3"]
        is None
    )
    assert recognise(source, tmp_path)[1] == ""
    memory.rm("/inputs/a.txt")
    memory.pipe("/inputs/a.txt", b"text")
    assert recognise(source, tmp_path)[1].startswith("memory:///inputs/a.txt has ")


def test_other_sources_stay_remembered(corpus, tmp_path):
    first, second = (
        Source(path=str(corpus / "a.txt")),
        Source(path=str(corpus / "b.txt")),
    )
    remember(first, tmp_path)
    remember(second, tmp_path)
    os.utime(corpus / "a.txt", (1, 1))
    files, changes = recognise(first, tmp_path)
    assert changes == ""
    assert files[0].known_as is not None


def test_hive_partitions_are_columns_of_a_file(tmp_path):
    names = [
        "year=2023/lang=en/a.jsonl",
        "year=2024/lang=de%20at/b.jsonl",
        "year=2024/lang=__HIVE_DEFAULT_PARTITION__/c=d.jsonl",
        "e.jsonl",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"text": "x"}')
    files = list_files(Source(path=str(tmp_path)), where="path")
    assert {file.name: dict(file.partitions) for file in files} == {
        "e.jsonl": {},
        "year=2023/lang=en/a.jsonl": {"year": 2023, "lang": "en"},
        "year=2024/lang=__HIVE_DEFAULT_PARTITION__/c=d.jsonl": {
            "year": 2024,
            "lang": None,
        },
        "year=2024/lang=de%20at/b.jsonl": {"year": 2024, "lang": "de at"},
    }
    # A column is of numbers if all of its values are.
    (tmp_path / "year=other").mkdir()
    (tmp_path / "year=other/f.jsonl").write_text('{"text": "x"}')
    files = list_files(Source(path=f"{tmp_path}/year=*/**"), where="path")
    years = {dict(file.partitions)["year"] for file in files}
    assert years == {"2023", "2024", "other"}
