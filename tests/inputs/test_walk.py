"""What a path reaches: through links, never through pipes, and not the run's own files."""

import os
import socket

import pytest

from nextlong.cli.main import main
from nextlong.errors import CorpusError, RunError
from nextlong.inputs.files import check_unchanged
from nextlong.inputs.listing import list_files
from nextlong.inputs.remembered import check_apart, input_files
from nextlong.inputs.walk import reaches
from nextlong.recipe import Recipe, Source

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


@pytest.mark.parametrize("asked", ["", "/data", "/data/*.jsonl", "/**/*.jsonl", "/data/1.jsonl"])
def test_a_file_behind_a_link_is_what_it_was_when_it_is_read(hub, asked):
    files = list_files(Source(path=f"{hub}/snapshots/main{asked}"), where="here")
    assert len(files) == (1 if asked.endswith("1.jsonl") else 3)
    assert {file.bytes for file in files} == {14}
    for file in files:
        check_unchanged(file)
    target = hub / "blobs" / f"{1:040x}"
    os.utime(target, (2_000_000_000, 2_000_000_000))
    with pytest.raises(CorpusError, match="changed while it was read"):
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
    with pytest.raises(CorpusError, match=r"b\.jsonl is not a regular file but a link to nothing; mend or remove it"):
        names_of(tmp_path)


@pytest.mark.parametrize("asked", ["{0}/x.jsonl", "{0}", "{0}/*.jsonl"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, capsys, asked):
    os.mkfifo(tmp_path / "x.jsonl")
    recipe = tmp_path / "r.yaml"
    source = f"{{path: '{asked.format(tmp_path)}'}}"
    recipe.write_text(f"run_dir: {tmp_path}-run\ningest: {{sources: [{source}]}}\ntokenizer: {{train: 300}}\n")
    for command in ("plan", "run"):
        assert main([command, str(recipe)]) == 2
        err = capsys.readouterr().err
        assert err.endswith("x.jsonl is not a regular file but a pipe; write what it gives into a file first\n")


def test_sockets_and_devices_are_refused(tmp_path):
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(str(tmp_path / "s.jsonl"))
        with pytest.raises(CorpusError, match="not a regular file but a socket"):
            names_of(tmp_path / "s.jsonl")
    with pytest.raises(CorpusError, match="not a regular file but a device"):
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


def test_a_run_inside_its_source_is_refused_at_once_and_leaves_nothing(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        f"run_dir: {tmp_path}/run\ningest: {{sources: [{{path: {tmp_path}}}]}}\ntokenizer: {{train: 300}}\n"
    )
    for command in ("plan", "run"):
        assert main([command, str(recipe)]) == 2
        assert f"run_dir={tmp_path}/run lies inside ingest.sources[0].path='{tmp_path}'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_recipe_that_init_writes_into_its_corpus_runs_elsewhere(tmp_path, capsys):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.jsonl").write_text('{"text": "x"}\n')
    assert main(["init", str(corpus / "my.yaml"), str(corpus)]) == 0
    capsys.readouterr()
    recipe = Recipe.load(corpus / "my.yaml")
    assert recipe.run_dir == str(tmp_path / "runs" / "my")
    check_apart(recipe, tmp_path / "runs" / "my")
    assert len(input_files(recipe)[0]) == 1
    with pytest.raises(RunError, match="lies inside"):
        check_apart(recipe, corpus / "runs")
