"""`RUN/data`: the rows of each format, whole, with a card whose Python runs."""

import json
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import fsspec
import pyarrow.parquet as pq
import pytest
import yaml

import nextlong
from nextlong.artifacts import variant_records
from nextlong.cli.main import main
from nextlong.engine import store
from nextlong.export.publish import ExportFile
from nextlong.recipe import Recipe
from nextlong.runs import data_folder
from nextlong.runs import export as runs_export
from nextlong.runs.card import _laid_in
from nextlong.verify import files as delivered
from nextlong.verify.files import check_files
from nextlong.verify.run_files import StoredRun

PLUGIN = """
import json
from nextlong.export.formats.base import Format, LoadingCode
from nextlong.artifacts.results import ShardResult

def write(out, blocks, options):
    with open(f"{out}.lines", "w") as file:
        for block in blocks:
            for first, last in zip(block.token_offsets, block.token_offsets[1:]):
                file.write(json.dumps(block.input_ids[first:last].tolist()) + "\\n")
    return ShardResult(rows=12)

FORMAT = Format(
    name="lines", layout="one list of ids a line", suffixes=(".lines",), write=write,
    snippet=LoadingCode("import json\\nfrom pathlib import Path",
                    "[json.loads(line) for path in sorted(Path({place}).glob('*.lines')) for line in path.open()]",
                    "len(rows), len(rows[0])"),
)
"""


@pytest.fixture(scope="module")
def exported(shared_run, tmp_path_factory):
    """A run with three formats in two splits; read-only."""
    run = Path(shutil.copytree(shared_run, tmp_path_factory.mktemp("exported") / "run"))
    runs_export.export(
        [run], formats=["parquet", "jsonl", "mds"], overrides=["export.validation=0.25"]
    )
    return run


@pytest.fixture
def own(exported, tmp_path):
    return Path(shutil.copytree(exported, tmp_path / "run"))


def snippets(folder):
    """Return the Python of a card with the folder put in, as a user does."""
    text = (folder / "README.md").read_text("utf-8")
    found = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [code.replace("/path/to/this/folder", str(folder)) for code in found]


def run_python(code, tmp_path, path=()):
    environment = {
        "HF_HOME": str(tmp_path / "hf"),
        "PATH": "",
        "PYTHONPATH": ":".join(map(str, path)),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, f"{code}\n{done.stderr}"
    return done.stdout


@pytest.mark.heavy
def test_every_snippet_of_every_card_runs(own, tmp_path):
    runs_export.export([own], formats=["arrow"])
    ran = []
    for folder in (
        own / "data",
        *sorted(path.parent for path in own.glob("data/*/README.md")),
    ):
        for code in snippets(folder):
            package = re.search(r"^from (\w+)", code, re.MULTILINE)[1]
            if (
                find_spec(package) is not None
            ):  # the readers of other formats are tested in tests/readers
                assert run_python(code, tmp_path).strip()
                ran.append(code)
    assert len(snippets(own / "data")) == 4
    assert len(ran) == 6


@pytest.mark.heavy
def test_datasets_loads_the_folder_itself_and_that_of_a_format(own, tmp_path):
    code = (
        "from datasets import load_dataset\n"
        f"a, b = (load_dataset({str(own / 'data')!r} + name, cache_dir={str(tmp_path)!r}) for name in ('', '/jsonl'))\n"
        "print({split: len(rows) for split, rows in a.items()}, {split: len(rows) for split, rows in b.items()})\n"
        "print('input_ids' in a['train'].column_names, 'text' in b['train'].column_names)"
    )
    assert run_python(code, tmp_path).split("\n")[:2] == [
        "{'train': 7, 'validation': 5} {'train': 7, 'validation': 5}", "True True",
    ]  # fmt: skip


def test_the_snippet_of_a_plugged_in_format_runs(shared_run, tmp_path):
    (tmp_path / "plug").mkdir()
    info = tmp_path / "plug" / "lines-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lines\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[nextlong.formats]\nlines = plugged_lines:FORMAT\n"
    )
    (tmp_path / "plug" / "plugged_lines.py").write_text(PLUGIN)
    run = Path(shutil.copytree(shared_run, tmp_path / "run"))
    path = [tmp_path / "plug", Path(nextlong.__file__).parents[1]]
    code = f"from nextlong.runs import export\nexport.export([{str(run)!r}], formats=['lines'], overrides=['workers=1'])"
    run_python(code, tmp_path, path)
    (snippet,) = snippets(run / "data" / "lines")
    assert run_python(snippet, tmp_path).split() == ["12", "2048"]


def test_the_rows_are_those_of_the_steps_and_cost_no_room(exported):
    run = nextlong.open(exported)
    for name, split in (
        ("parquet", "train"),
        ("parquet-validation", "validation"),
        ("jsonl", "train"),
    ):
        for path in run.steps[name].files(
            ".parquet" if "parquet" in name else ".jsonl"
        ):
            assert (
                exported / "data" / name.partition("-")[0] / split / path.name
            ).samefile(path)
    card = (exported / "data" / "README.md").read_text("utf-8")
    configs = yaml.safe_load(card.split("---\n")[1])["configs"]
    assert [config["config_name"] for config in configs] == ["default"]
    assert "@article{gao2025nextlong," in card
    assert "tokenized with `byte-level BPE trained on the corpus`" in card
    outcomes = [
        one
        for name in ("jsonl", "mds", "parquet")
        for one in delivered.verify_delivered(
            fsspec.filesystem("file"), str(exported / "data" / name)
        )
    ]
    assert not [one.examples for one in outcomes if one.result == "breach"]


def test_a_method_is_cited_by_its_own_paper(recipe_for, started, tmp_path):
    nextlong.run(
        recipe_for(started(tmp_path / "run"), "compose.method=splice", "workers=1")
    )
    card = (tmp_path / "run" / "data" / "README.md").read_text("utf-8")
    assert "@article{staniszewski2023structured," in card
    assert "arXiv:2312.17296" in card


def test_verify_finds_a_file_of_data_that_is_not_the_runs(own):
    assert check_files(StoredRun(own))[1].examples == []
    path = own / "data" / "jsonl" / "train" / "part-00000.jsonl"
    text = path.read_bytes()
    path.unlink()
    path.write_bytes(text.replace(b"a", b"b", 1))
    (found,) = check_files(StoredRun(own))[1].examples
    assert found.startswith("data/jsonl/train/part-00000.jsonl has the hash")
    path.unlink()
    assert "is missing" in check_files(StoredRun(own))[1].examples[0]
    runs_export.export([own], formats=["jsonl"], overrides=["export.validation=0.25"])
    assert path.read_bytes() == text


def test_where_run_opens_another_variant_the_rows_move_with_it(
    own, recipe_for, tmp_path
):
    changed = recipe_for(own, "compose.target_tokens=1024")
    nextlong.run(changed)
    data = own / "data"
    assert variant_records.current(own) == "1k"
    assert "sequences of 1,024 tokens" in (data / "README.md").read_text("utf-8")
    assert "sequences of 2,048 tokens" in (data / "base" / "README.md").read_text(
        "utf-8"
    )
    assert sorted(path.name for path in (data / "base").iterdir()) == [
        "README.md",
        "jsonl",
        "mds",
        "parquet",
    ]
    assert nextlong.open(f"{own}@base").data == data / "base"
    (data / "parquet").rename(
        data / "base" / "elsewhere"
    )  # as a kill between two moves leaves it
    shutil.rmtree(data / "base" / "elsewhere")
    nextlong.run(recipe_for(own))
    assert "sequences of 2,048 tokens" in (data / "README.md").read_text("utf-8")
    assert not (data / "base").exists()
    assert sorted(path.name for path in data.iterdir()) == [
        "1k",
        "README.md",
        "jsonl",
        "mds",
        "parquet",
    ]


def test_a_folder_is_swapped_whole_and_what_the_user_put_there_stays(tmp_path):
    def files(text):
        (tmp_path / text).write_text(text)
        return [
            ExportFile(
                tmp_path / text, "train/rows", 1, store.hash_file(tmp_path / text)
            )
        ]

    folder = tmp_path / "data" / "jsonl"
    told = json.dumps({"files": {"train/rows": {}}})
    data_folder.place(folder, files("one"), texts={"README.md": "card"}, delivered=told)
    (folder / "train" / "NOTES.txt").write_text("mine")
    folder.rename(
        folder.with_name(".jsonl.old")
    )  # as a kill between the two renames leaves it
    data_folder.place(folder, files("two"), texts={"README.md": "card"}, delivered=told)
    assert (folder / "train" / "rows").read_text() == "two"
    assert (folder / "train" / "NOTES.txt").read_text() == "mine"
    assert [path.name for path in folder.parent.iterdir()] == ["jsonl"]
    for card, now in (
        ("new card", told),
        ("new card", f"{told}\n"),
    ):  # of the same rows
        data_folder.place(
            folder, files("two"), texts={"README.md": card}, delivered=now
        )
        assert [
            (folder / name).read_text()
            for name in (data_folder.CARD, data_folder.DELIVERED)
        ] == [card, now]


class Killed(BaseException):
    """What ends a process at once."""


def dies(monkeypatch, call, at):
    """Let a function of `Path` end the process at its call number `at`."""
    real, calls = getattr(Path, call), iter(range(at + 1))

    def dying(*arguments, **options):
        if next(calls, at) == at:
            raise Killed
        return real(*arguments, **options)

    monkeypatch.setattr(Path, call, dying)


def exports(tmp_path, text, names):
    (tmp_path / text).write_text(text)
    files = [
        ExportFile(tmp_path / text, name, len(text), store.hash_file(tmp_path / text))
        for name in names
    ]
    return files, json.dumps({"files": {name: {} for name in names}})


@pytest.mark.parametrize(
    ("call", "at"),
    [("rename", n) for n in range(4)] + [("unlink", n) for n in range(7)],
)
def test_a_kill_loses_nothing_that_the_user_put_beside_the_rows(
    tmp_path, monkeypatch, call, at
):
    folder = tmp_path / "data" / "jsonl"
    one, told = exports(tmp_path, "one", ["train/a", "train/b"])
    data_folder.place(folder, one, texts={"README.md": "card"}, delivered=told)
    (folder / "train" / "NOTES.txt").write_text("mine")
    (folder / "train" / "c").write_text("mine as well")
    (folder / "gone").symlink_to("nowhere")
    two, told = exports(tmp_path, "two", ["train/a", "train/c"])
    with monkeypatch.context() as killed, suppress(Killed):
        dies(killed, call, at)
        data_folder.place(folder, two, texts={"README.md": "new"}, delivered=told)
    data_folder.place(folder, two, texts={"README.md": "new"}, delivered=told)
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if not path.is_dir()
    )
    assert names == [
        "README.md",
        "gone",
        "manifest.json",
        "train/NOTES.txt",
        "train/a",
        "train/c",
        "train/c.kept",
    ]
    assert [(folder / "train" / name).read_text() for name in ("NOTES.txt", "a", "c", "c.kept")] == [
        "mine", "two", "two", "mine as well",
    ]  # fmt: skip
    assert [path.name for path in folder.parent.iterdir()] == ["jsonl"]


def test_the_names_in_data_are_brought_to_the_disk_after_the_renames(
    tmp_path, monkeypatch
):
    folder, synced, real = tmp_path / "data" / "jsonl", [], store.sync
    monkeypatch.setattr(
        store, "sync", lambda path: (synced.append((path, folder.exists())), real(path))
    )
    files, told = exports(tmp_path, "one", ["train/a"])
    data_folder.place(folder, files, texts={"README.md": "card"}, delivered=told)
    assert synced[0] == (folder.with_name(".jsonl.new") / "train", False)
    assert synced[-1] == (folder.parent, True)


def opens(run, name):
    store.write_json(run / "run.json", {"variant": name})
    data_folder.settle(run)


def test_symbolic_links_lead_to_the_rows_wherever_the_folder_moves(own, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "not here")

    with monkeypatch.context() as without:
        without.setattr(data_folder.os, "link", refuse)
        runs_export.export(
            [own], formats=["jsonl"], overrides=["export.validation=0.25"]
        )
    part = Path("jsonl", "train", "part-00000.jsonl")
    assert (own / "data" / part).is_symlink()
    text = (own / "data" / part).read_text("utf-8")
    opens(own, "other")
    assert (own / "data" / "base" / part).read_text("utf-8") == text
    with monkeypatch.context() as killed, suppress(Killed):
        dies(killed, "readlink", 0)
        opens(own, "base")
    opens(own, "base")
    assert (own / "data" / part).read_text("utf-8") == text
    assert not list(own.glob("data/**/.*"))


def test_rows_that_move_onto_newer_ones_leave_what_the_user_put_beside_them(own):
    data = own / "data"
    shutil.copytree(data / "jsonl", data / "base" / "jsonl")
    (data / "base" / "jsonl" / "NOTES.txt").write_text("mine")
    opens(own, "base")
    assert (data / "jsonl" / "NOTES.txt").read_text() == "mine"
    assert not (data / "base").exists()


def test_folders_of_the_users_with_a_manifest_are_let_alone(own, recipe_for, capsys):
    data = own / "data"
    texts = (
        '{"name": "my app"}',
        "[]",
        "no JSON",
        '{"files": {}, "format": "mine3", "runs": "all"}',
    )
    for number, text in enumerate(texts):
        (data / f"mine{number}").mkdir()
        (data / f"mine{number}" / "manifest.json").write_text(text)
    (data / "mine").mkdir()  # a step is called so, too
    (data / "mine" / "manifest.json").write_text("{}")
    shutil.copytree(data / "jsonl", data / "copy")
    shutil.copytree(data / "jsonl", data / "backup" / "jsonl")
    for copy in ("copy", "backup/jsonl"):
        (data / copy / "train" / "part-00000.jsonl").write_text("changed")
    (data / "parquet" / "NOTES.txt").write_text("mine")
    assert check_files(StoredRun(own))[1].examples == []
    nextlong.run(recipe_for(own, "compose.target_tokens=1024"))
    assert nextlong.open(own).data == data
    assert main(["gc", str(own), "--drop", "base", "--yes"]) == 0
    assert sorted(path.name for path in (data / "base").rglob("*")) == [
        "NOTES.txt",
        "parquet",
    ]
    for name in ("mine0", "mine1", "mine2", "mine3", "mine", "copy", "backup/jsonl"):
        assert (data / name / "manifest.json").exists()


def test_a_damaged_record_of_the_runs_rows_is_told(own):
    (own / "data" / "jsonl" / "manifest.json").write_text("{")
    assert "data/jsonl/manifest.json" in check_files(StoredRun(own))[1].examples[0]


def test_a_later_export_leaves_what_datasets_loads(own):
    runs_export.export([own], formats=["jsonl", "mds"])
    card = (own / "data" / "README.md").read_text("utf-8")
    (config,) = yaml.safe_load(card.split("---\n")[1])["configs"]
    assert {one["path"].split("/")[0] for one in config["data_files"]} == {"parquet"}


def test_the_bytes_of_a_format_are_those_of_its_rows_without_its_card(own):
    written = runs_export.export([own], formats=["parquet", "jsonl"])
    sizes = {
        (laid.format.name, split.name): split.bytes
        for laid in _laid_in(written.folder)
        for split in laid.splits
    }
    for name in ("parquet", "jsonl"):
        assert sizes[name, "train"] == written.step(name, "train").manifest["bytes"]


def test_without_hard_links_there_are_symbolic_ones(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "not here")

    monkeypatch.setattr(data_folder.os, "link", refuse)
    (tmp_path / "step").mkdir()
    (tmp_path / "step" / "rows").write_text("rows")
    file = ExportFile(tmp_path / "step" / "rows", "rows", 4, "")
    data_folder.place(
        tmp_path / "data" / "jsonl", [file], texts={"README.md": ""}, delivered="{}"
    )
    link = tmp_path / "data" / "jsonl" / "rows"
    assert link.is_symlink()
    assert not link.readlink().is_absolute()
    assert link.read_text() == "rows"


def test_rows_of_variants_and_mixes_go_with_them(own, recipe_for, tmp_path, capsys):
    (tmp_path / "r.yaml").write_text(recipe_for(own).dump())
    runs_export.run(
        Recipe.load(tmp_path / "r.yaml", overrides=["compose.sequences=3", "name=few"])
    )
    data = own / "data"
    assert (data / "few" / "parquet" / "manifest.json").exists()
    written = runs_export.export([f"{own}@few", own], formats=["jsonl"])
    assert written.folder.parent == data
    assert written.folder.name.startswith(f"mix-{own.name}-few+{own.name}-")
    assert "A mix of these runs" in (written.folder / "README.md").read_text("utf-8")
    assert main(["gc", str(own), "--drop", "few", "--yes"]) == 0
    assert sorted(path.name for path in data.iterdir()) == [
        "README.md",
        "jsonl",
        "mds",
        "parquet",
    ]
    assert main(["run", str(tmp_path / "r.yaml"), "--set", "name=parquet"]) == 2
    assert "data/parquet is reserved" in capsys.readouterr().err


def test_where_run_opens_no_variant_a_card_lists_them_and_datasets_loads_each(
    recipe_for, started, tmp_path
):
    run_dir = started(tmp_path / "run")
    (tmp_path / "r.yaml").write_text(
        recipe_for(
            run_dir, "compose.target_tokens=512", "export.formats=parquet"
        ).dump()
    )
    for count in (3, 4):
        runs_export.run(
            Recipe.load(
                tmp_path / "r.yaml",
                overrides=[f"compose.sequences={count}", f"name=n{count}"],
            )
        )
    card = (run_dir / "data" / "README.md").read_text("utf-8")
    configs = yaml.safe_load(card.split("---")[1])["configs"]
    assert [config["config_name"] for config in configs] == ["n3", "n4"]
    for config, count in zip(configs, (3, 4), strict=True):
        (split,) = config["data_files"]
        files = sorted((run_dir / "data").glob(split["path"]))
        assert sum(pq.read_metadata(file).num_rows for file in files) == count
    assert main(["gc", str(run_dir), "--drop", "n3", "--yes"]) == 0
    assert "n3" not in (run_dir / "data" / "README.md").read_text("utf-8")
