"""Data set folders are read as the `datasets` library reads them: the same files, split by split."""

import itertools
import json
import os
import random

import fsspec
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nextlong.errors import CorpusError
from nextlong.reading.files import FilePart
from nextlong.reading.formats import read_records
from nextlong.reading.listing import list_files, split_of
from nextlong.recipe import Source


def card(*configs):
    """Return a README.md with these entries of `configs`."""
    return (
        "---\nlicense: mit\nconfigs: " + json.dumps(list(configs)) + "\n---\n# Data\n"
    )


def split_files(*pairs):
    return [{"split": split, "path": path} for split, path in pairs]


SHARDS = (
    "data/train-00000-of-00002.parquet",
    "data/train-00001-of-00002.parquet",
    "data/validation-00000-of-00001.parquet",
    "data/test-00000-of-00001-abcdef.parquet",
)

# name → files, README.md, and the files of each split.
LAYOUTS = {
    "shards": (
        SHARDS,
        None,
        {"train": SHARDS[:2], "validation": SHARDS[2:3], "test": SHARDS[3:]},
    ),
    "shards beside other files": (
        (*SHARDS[:1], SHARDS[3], "extra.parquet", "data/other.parquet", "notes.md"),
        None,
        {"train": SHARDS[:1], "test": SHARDS[3:]},
    ),
    "shards of other splits": (
        ("data/train-00000-of-00001.jsonl", "data/random-00000-of-00001.jsonl"),
        None,
        {
            "train": ["data/train-00000-of-00001.jsonl"],
            "random": ["data/random-00000-of-00001.jsonl"],
        },
    ),
    "file names": (
        ("train.jsonl", "valid.jsonl", "test.jsonl"),
        None,
        {"train": ["train.jsonl"], "validation": ["valid.jsonl"], "test": ["test.jsonl"]},
    ),
    "numbered file names": (
        ("train_0.csv", "train_1.csv", "dev-0.csv", "eval.0.csv", "other.csv"),
        None,
        {
            "train": ["train_0.csv", "train_1.csv"],
            "validation": ["dev-0.csv"],
            "test": ["eval.0.csv"],
        },
    ),
    "file names in folders": (
        ("en/my-train.jsonl", "en/my-test.jsonl", "de/deep/training 1.jsonl"),
        None,
        {"train": ["en/my-train.jsonl", "de/deep/training 1.jsonl"], "test": ["en/my-test.jsonl"]},
    ),
    "words that only begin like a split": (
        ("trains.jsonl", "testimony.jsonl", "contest.jsonl"),
        None,
        None,
    ),
    "folder names": (
        ("train/a.jsonl", "train/deep/b.jsonl", "test/a.jsonl", "c.jsonl"),
        None,
        {"train": ["train/a.jsonl", "train/deep/b.jsonl"], "test": ["test/a.jsonl"]},
    ),
    "folder names with words around": (
        ("x/my_train_2/a.parquet", "x/dev.v1/a.parquet", "x/evaluation/a.parquet"),
        None,
        {
            "train": ["x/my_train_2/a.parquet"],
            "validation": ["x/dev.v1/a.parquet"],
            "test": ["x/evaluation/a.parquet"],
        },
    ),
    "folders before files": (
        ("train/test.jsonl", "train/b.jsonl", "validation/train.jsonl"),
        None,
        {
            "train": ["train/test.jsonl", "train/b.jsonl"],
            "validation": ["validation/train.jsonl"],
        },
    ),
    "text files": (
        ("train.txt", "valid.txt", "test.txt"),
        None,
        {"train": ["train.txt"], "validation": ["valid.txt"], "test": ["test.txt"]},
    ),
    "text files in folders": (
        ("train/pos/1.txt", "train/neg/2.txt", "test/pos/3.txt", "unsup/4.txt"),
        None,
        {"train": ["train/pos/1.txt", "train/neg/2.txt"], "test": ["test/pos/3.txt"]},
    ),
    "a cache of datasets": (
        ("imdb/plain/0.0.0/imdb-train.arrow", "imdb/plain/0.0.0/imdb-test.arrow"),
        None,
        {
            "train": ["imdb/plain/0.0.0/imdb-train.arrow"],
            "test": ["imdb/plain/0.0.0/imdb-test.arrow"],
        },
    ),
    "two formats": (
        ("train.jsonl", "train_b.jsonl", "train.csv", "test.jsonl"),
        None,
        {"train": ["train.jsonl", "train_b.jsonl"], "test": ["test.jsonl"]},
    ),
    "no splits": (("a.jsonl", "deep/b.jsonl"), None, None),
    "a card with lists of splits": (
        ("a/1.jsonl", "a/2.jsonl", "b/1.jsonl", "c.jsonl"),
        card(
            {
                "config_name": "default",
                "data_files": split_files(("train", ["a/1.jsonl", "b/*"]), ("test", "a/2*")),
            }
        ),
        {"train": ["a/1.jsonl", "b/1.jsonl"], "test": ["a/2.jsonl"]},
    ),
    "a card against the file names": (
        ("test.jsonl", "train.jsonl"),
        card({"config_name": "x", "data_files": split_files(("train", "test.jsonl"))}),
        {"train": ["test.jsonl"]},
    ),
    "a card with one pattern": (
        ("data/a.jsonl", "data/deep/b.jsonl", "other/c.jsonl"),
        card({"config_name": "default", "data_files": "data/**"}),
        {"train": ["data/a.jsonl", "data/deep/b.jsonl"]},
    ),
    "a card with a list of patterns": (
        ("a.jsonl", "b.jsonl", "c.jsonl"),
        card({"config_name": "default", "data_files": ["a*", "[bx].jsonl"]}),
        {"train": ["a.jsonl", "b.jsonl"]},
    ),
    "a card with folders": (
        ("en/train.jsonl", "en/test.jsonl", "de/train.jsonl"),
        card({"config_name": "en", "data_dir": "en", "default": True}, {"config_name": "de", "data_dir": "de"}),
        {"train": ["en/train.jsonl"], "test": ["en/test.jsonl"]},
    ),
    "a card with folders and patterns": (
        ("en/a.jsonl", "en/b.jsonl", "a.jsonl", "b.jsonl"),
        card({"config_name": "en", "data_dir": "en", "data_files": split_files(("train", "a.jsonl"), ("test", "b.*"))}),
        {"train": ["en/a.jsonl"], "test": ["en/b.jsonl"]},
    ),
    "a card whose folder has no splits": (
        ("en/a.jsonl", "en/b.jsonl", "de/c.jsonl"),
        card({"config_name": "default", "data_dir": "en"}, {"config_name": "de", "data_dir": "de"}),
        {"train": ["en/a.jsonl", "en/b.jsonl"]},
    ),
    "a card without files": (
        ("train.jsonl", "test.jsonl"),
        card({"config_name": "default"}),
        {"train": ["train.jsonl"], "test": ["test.jsonl"]},
    ),
    "a card without configs": (
        ("train.jsonl", "test.jsonl"),
        "---\nlicense: mit\n---\n",
        {"train": ["train.jsonl"], "test": ["test.jsonl"]},
    ),
    "hidden and special folders": (
        ("train/a.jsonl", "train/__pycache__/b.jsonl", ".git/train/c.jsonl", "test/.d.jsonl", "test/e.jsonl"),
        None,
        {"train": ["train/a.jsonl"], "test": ["test/e.jsonl"]},
    ),
}  # fmt: skip


def write(folder, names, readme=None):
    """Write two rows, which name the file, into each of the files."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"text": f"{name} {number}", "n": number} for number in range(2)]
        table = pa.Table.from_pylist(rows)
        if name.endswith(".parquet"):
            pq.write_table(table, path)
        elif name.endswith(".arrow"):
            with (
                pa.OSFile(str(path), "wb") as sink,
                pa.ipc.new_stream(sink, table.schema) as writer,
            ):
                writer.write_table(table)
        elif name.endswith(".csv"):
            path.write_text(
                "text,n\n" + "".join(f"{row['text']},{row['n']}\n" for row in rows)
            )
        elif name.endswith(".jsonl"):
            path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
        else:
            path.write_text(name)
    if readme is not None:
        (folder / "README.md").write_text(readme)
    return folder


def names_of(folder, **keys):
    source = Source(path=str(folder), **keys)
    return [file.name for file in list_files(source, where="ingest.sources[0].path")]


def notes_of(folder, **keys):
    notes = []
    list_files(
        Source(path=str(folder), name="s", **keys), where="path", tell=notes.append
    )
    return notes


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_split_of_every_layout_has_its_files(tmp_path, layout):
    files, readme, splits = LAYOUTS[layout]
    write(tmp_path, files, readme)
    if splits is None:
        assert names_of(tmp_path) == sorted(files)
        assert notes_of(tmp_path) == []
        return
    assert names_of(tmp_path) == sorted(splits["train"])
    for split, names in splits.items():
        assert names_of(tmp_path, split=split) == sorted(names)
    all_names = sorted(itertools.chain.from_iterable(splits.values()))
    assert names_of(tmp_path, split="+".join(splits)) == all_names
    assert {*names_of(tmp_path, split="all")} >= {*all_names}


@pytest.mark.heavy
@pytest.mark.parametrize("layout", LAYOUTS)
def test_datasets_gives_every_split_the_same_files_and_rows(
    tmp_path, layout, monkeypatch
):
    datasets = pytest.importorskip("datasets")
    files, readme, splits = LAYOUTS[layout]
    folder = write(tmp_path / "data set", files, readme)
    theirs = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
    # Without splits, all files are `train`.
    assert set(theirs) == set(splits or ["train"])
    builder = datasets.load_dataset_builder(
        str(folder), cache_dir=str(tmp_path / "cache")
    )
    for split in theirs:
        source = Source(path=str(folder), split=str(split) if splits else None)
        ours = list_files(source, where="path")
        paths = {os.path.realpath(path) for path in builder.config.data_files[split]}
        assert {os.path.realpath(file.path) for file in ours} == paths
        texts = [
            record.text
            for file in ours
            for record in read_records(FilePart(file), source, max_document_chars=1000)
        ]
        assert sorted(texts) == sorted(theirs[split]["text"])


@pytest.mark.parametrize(
    "names",
    [
        ("Train.jsonl", "Test.jsonl"),
        ("TRAIN/a.jsonl", "Test/a.jsonl"),
        ("my_Train-0.jsonl", "my_DEV-0.jsonl"),
    ],
)
def test_splits_with_capitals_are_splits(tmp_path, names):
    write(tmp_path, names)
    assert names_of(tmp_path) == [names[0]]


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(12))
def test_datasets_agrees_about_invented_names(tmp_path, seed):
    datasets = pytest.importorskip("datasets")
    draw = random.Random(seed)
    words = [
        "train",
        "training",
        "test",
        "dev",
        "val",
        "valid",
        "eval",
        "evaluation",
        "x",
        "testing",
        "ab",
    ]
    folders = ["", "data/", "a/", "train/", "my test/", "dev_1/", "x-train-2/"]
    names = {
        f"{draw.choice(folders)}{draw.choice(['', 'my-', 'a.', 'b'])}{draw.choice(words)}"
        f"{draw.choice(['', '_0', '-1', '.x', 's', '-00000-of-00001'])}.jsonl"
        for _ in range(draw.randint(2, 9))
    }  # fmt: skip
    names |= {"train-0.jsonl", "train/0.jsonl"}
    folder = write(tmp_path / "set", sorted(names))
    try:
        builder = datasets.load_dataset_builder(
            str(folder), cache_dir=str(tmp_path / "cache")
        )
    except ValueError:  # a split name that is not allowed
        return
    for split, paths in builder.config.data_files.items():
        theirs = {
            os.path.relpath(os.path.realpath(path), os.path.realpath(folder))
            for path in paths
        }
        assert set(names_of(folder, split=str(split))) == theirs
    if "train" in builder.config.data_files:
        assert names_of(folder) == names_of(folder, split="train")


@pytest.mark.heavy
def test_a_saved_data_set_with_splits_is_read_split_by_split(tmp_path):
    datasets = pytest.importorskip("datasets")
    splits = {
        name: datasets.Dataset.from_list([{"text": f"{name} {n}"} for n in range(9)])
        for name in ("train", "test", "my.other")
    }
    datasets.DatasetDict(splits).save_to_disk(
        str(tmp_path / "set"), num_shards={"train": 2, "test": 1, "my.other": 1}
    )
    theirs = datasets.load_from_disk(str(tmp_path / "set"))
    for split in theirs:
        source = Source(path=str(tmp_path / "set"), split=split)
        ours = [
            record.text
            for file in list_files(source, where="path")
            for record in read_records(FilePart(file), source, max_document_chars=1000)
        ]
        assert ours == theirs[split]["text"][:]
    assert names_of(tmp_path / "set") == names_of(tmp_path / "set", split="train")


def test_a_saved_data_set_is_known_by_its_dataset_dict(tmp_path):
    write(tmp_path, ["train/a.arrow", "heldout/a.arrow", "other/a.arrow"])
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "heldout"]}')
    assert names_of(tmp_path) == ["train/a.arrow"]
    assert names_of(tmp_path, split="heldout") == ["heldout/a.arrow"]
    (tmp_path / "dataset_dict.json").write_text("{")
    with pytest.raises(CorpusError, match=r"dataset_dict\.json"):
        names_of(tmp_path)


def test_what_is_not_read_is_told_unless_the_recipe_chooses(tmp_path):
    write(tmp_path, [*SHARDS, "extra.parquet"])
    (note,) = notes_of(tmp_path)
    assert note.startswith("s: reads the split 'train' ")
    assert "test (1 file), validation (1 file), 1 other" in note
    assert "split" in note.rpartition(";")[2]
    assert notes_of(tmp_path, split="train") == []


CONFIGS = card(
    {"config_name": "en", "data_files": "en.jsonl"},
    {"config_name": "de", "data_files": split_files(("train", "de.jsonl"), ("test", "t.jsonl"))},
)  # fmt: skip


def test_a_config_is_chosen_by_name(tmp_path):
    write(tmp_path, ["en.jsonl", "de.jsonl", "t.jsonl"], CONFIGS)
    assert names_of(tmp_path, config="en") == ["en.jsonl"]
    assert names_of(tmp_path, config="de", split="test") == ["t.jsonl"]
    for config in (None, "fr"):
        with pytest.raises(CorpusError, match="en, de") as caught:
            names_of(tmp_path, config=config)
        assert "config" in caught.value.fix


def test_the_card_may_be_a_yaml_file_of_its_own(tmp_path):
    write(tmp_path, ["en.jsonl", "de.jsonl", "t.jsonl"])
    (tmp_path / ".huggingface.yaml").write_text(CONFIGS.split("---")[1])
    assert names_of(tmp_path, config="en") == ["en.jsonl"]


@pytest.mark.parametrize(
    ("names", "keys", "named"),
    [
        (["data/test-00000-of-00001.parquet", "data/dev-00000-of-00001.parquet"], {}, "dev, test"),
        (["test.jsonl", "validation.jsonl"], {}, "validation, test"),
        (["data/test_sft-00000-of-00001.parquet", "data/train_sft-00000-of-00001.parquet"], {}, "train_sft"),
        (["a.jsonl", "b.jsonl", "test.jsonl"], {}, "'test.jsonl', which looks like the split 'test'"),
        (["train.jsonl", "test.jsonl"], {"split": "dev"}, "no split 'dev', only train, test"),
        (["train.jsonl"], {"split": "train+dev"}, "no split 'dev'"),
        (["a.jsonl"], {"split": "train"}, "no splits"),
        (["a.jsonl"], {"config": "en"}, "no configs"),
    ],
)  # fmt: skip
def test_a_split_that_must_be_chosen_is_asked_for(tmp_path, names, keys, named):
    write(tmp_path, names)
    with pytest.raises(CorpusError) as caught:
        names_of(tmp_path, **keys)
    assert str(caught.value).startswith(f"ingest.sources[0].path={str(tmp_path)!r}")
    assert named in str(caught.value)
    if not keys:
        assert names_of(tmp_path, split="all") == sorted(names)


def test_splits_of_other_names_are_all_read_with_a_note(tmp_path):
    names = ["data/en-00000-of-00001.parquet", "data/de-00000-of-00001.parquet"]
    write(tmp_path, names)
    assert names_of(tmp_path) == sorted(names)
    write(tmp_path, [f"data/c4.en-{n:05}-of-00003.jsonl" for n in range(3)])
    assert len(names_of(tmp_path)) == 3


@pytest.mark.parametrize(
    "names",
    [
        ["data/c4-en-00000-of-00002.jsonl", "data/c4-en-00001-of-00002.jsonl"],
        ["guide/training.md", "guide/testing.md", "guide/other.md"],
        ["library/test.txt", "library/train.txt", "library/os.txt"],
        ["2024-test.html", "train.html"],
    ],
)
def test_documents_whose_names_have_such_words_are_all_read(tmp_path, names):
    write(tmp_path, names)
    assert names_of(tmp_path) == sorted(names)
    assert notes_of(tmp_path) == []


@pytest.mark.parametrize("path", ["train.jsonl", "*.jsonl"])
def test_a_file_or_a_glob_is_read_as_it_is_and_has_no_split(tmp_path, path):
    write(tmp_path, ["train.jsonl", "test.jsonl"])
    expected = ["test.jsonl", "train.jsonl"] if "*" in path else ["train.jsonl"]
    assert names_of(tmp_path / path) == expected
    for keys in ({"split": "train"}, {"config": "en"}):
        with pytest.raises(CorpusError, match="not a folder"):
            names_of(tmp_path / path, **keys)


@pytest.mark.parametrize(
    "readme",
    [
        "---\nconfigs: 3\n---\n",
        "---\nconfigs: [{data_files: a}]\n---\n",
        card({"config_name": "x", "data_files": [{"split": "train"}]}),
        card(
            {
                "config_name": "x",
                "data_files": split_files(("train", "a"), ("train", "b")),
            }
        ),
        card({"config_name": "x", "data_files": split_files(("train", "none/*"))}),
    ],
)
def test_a_card_that_is_wrong_is_refused(tmp_path, readme):
    write(tmp_path, ["train.jsonl"], readme)
    with pytest.raises(CorpusError):
        names_of(tmp_path)


@pytest.mark.parametrize(
    "readme", ["# Data\n---\nconfigs: 3\n---\n", "---\na: [\n---\n", "---\n"]
)
def test_a_readme_of_something_else_is_ignored(tmp_path, readme):
    write(tmp_path, ["a.jsonl"], readme)
    assert names_of(tmp_path) == ["a.jsonl"]


def test_a_remote_folder_is_read_alike(tmp_path):
    write(tmp_path, [*SHARDS, "README.md"])
    fs = fsspec.filesystem("memory")
    fs.put(f"{tmp_path}/", "/hub/set/", recursive=True)
    try:
        assert names_of("memory://hub/set") == sorted(SHARDS[:2])
        assert names_of("memory://hub/set", split="test") == [SHARDS[3]]
        fs.pipe(
            "/hub/set/README.md",
            card({"config_name": "a", "data_files": SHARDS[2]}).encode(),
        )
        assert names_of("memory://hub/set") == [SHARDS[2]]
    finally:
        fs.rm("/hub", recursive=True)


def test_the_choice_is_told_to_init(tmp_path):
    write(tmp_path, ["en.jsonl", "de.jsonl", "t.jsonl"], CONFIGS)
    chosen = split_of(Source(path=str(tmp_path), config="de"), where="path")
    assert (chosen.split, chosen.config, list(chosen.names)) == (
        "train",
        "de",
        ["de.jsonl"],
    )
    assert split_of(Source(path=str(tmp_path / "en.jsonl")), where="path") is None
