import json
import shutil

import pytest

from nextlong import pipeline
from nextlong.cli import main as cli_main
from nextlong.engine import step_store, store
from nextlong.engine.store import locked
from nextlong.runs.variants import bytes_of, list_variants, manifest_of
from sharing import CHEAP, Told, stored


def test_a_variant_alone_frees_all_that_its_steps_hold(shared_run):
    (variant,) = list_variants(shared_run)
    assert variant.is_current
    assert variant.differs == {}
    assert (variant.sequences, variant.tokens_each) == (12, 2048)
    steps = [folder for folder in shared_run.iterdir() if (folder / store.MANIFEST).is_file()]
    assert variant.bytes == variant.alone_bytes == sum(map(bytes_of, steps))
    assert set(variant.exports) == {"parquet", "jsonl"}


def test_folders_and_files_weigh_what_is_in_them(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one").write_bytes(b"12345")
    (tmp_path / "a" / "b" / "two").write_bytes(b"123")
    assert bytes_of(tmp_path / "a") == 8
    assert bytes_of(tmp_path / "a" / "one") == 5


@pytest.mark.parametrize("text", [None, "{", "[1]"])
def test_a_step_without_a_manifest_is_none(tmp_path, text):
    if text is not None:
        (tmp_path / store.MANIFEST).write_text(text)
    assert manifest_of(tmp_path) == {}


@pytest.fixture
def first(recipe_for, tmp_path):
    recipe = stored(recipe_for, tmp_path, "a", CHEAP)
    pipeline.run(recipe)
    return recipe


def call(capfd, *arguments):
    capfd.readouterr()
    code = cli_main.main([str(argument) for argument in arguments])
    return code, *capfd.readouterr()


def test_gc_of_a_run_takes_links_and_prune_of_the_store_what_no_run_links_to(first, recipe_for, tmp_path, capfd):
    store, run = tmp_path / "store", tmp_path / "a"
    pipeline.run(stored(recipe_for, tmp_path, "a", CHEAP, "chunk.max_chars=200", "name=other"))
    before = {path.name for path in store.glob("[0-9][0-9]-*")}
    assert call(capfd, "gc", store, "--yes")[1].endswith("nothing to clean up\n")
    code, out, _ = call(capfd, "gc", run, "--drop", "other", "--yes")
    assert code == 0
    assert f"a link; its files stay in {store}" in out
    assert {path.name for path in store.glob("[0-9][0-9]-*")} == before
    code, out, _ = call(capfd, "gc", store, "--yes")
    assert (code, out.splitlines()[-1]) == (0, "removed")
    left = {path.name for path in store.glob("[0-9][0-9]-*")}
    assert left == {path.name for path in step_store.links(run)} < before
    assert call(capfd, "verify", f"{run}@base")[0] == 0
    pipeline.run(stored(recipe_for, tmp_path, "a", CHEAP, "chunk.max_chars=200"))
    assert {path.name.partition("-")[2] for path in store.glob("[0-9][0-9]-*")} == {
        name.partition("-")[2] for name in before
    }


def test_nothing_is_pruned_while_a_run_directory_cannot_be_found(first, tmp_path, capfd):
    store, moved = tmp_path / "store", tmp_path / "elsewhere"
    before = sorted(path.name for path in store.iterdir())
    (tmp_path / "a").rename(moved)
    for form in ((), ("--json",), ("--yes",), ("--yes", "--json")):
        code, _, err = call(capfd, "gc", store, *form)
        assert code == 2
        assert f"{tmp_path / 'a'} used {store} and cannot be found, so nothing was removed" in " ".join(err.split())
    assert sorted(path.name for path in store.iterdir()) == before
    assert call(capfd, "verify", moved)[0] == 0
    moved.rename(tmp_path / "a")
    assert call(capfd, "gc", store, "--yes")[0] == 0


def test_a_run_directory_that_is_forgotten_needs_nothing(first, recipe_for, tmp_path, capfd):
    store = tmp_path / "store"
    pipeline.run(stored(recipe_for, tmp_path, "b", CHEAP))
    shutil.rmtree(tmp_path / "a")
    for named, message in ((tmp_path / "b", "it is still there"), (tmp_path / "c", "knows no such run directory")):
        code, _, err = call(capfd, "gc", store, "--yes", "--forget", named)
        assert code == 2
        assert message in err
    assert call(capfd, "gc", store, "--yes", "--forget", tmp_path / "a")[0] == 0
    shutil.rmtree(tmp_path / "b")
    code, out, _ = call(capfd, "gc", store, "--json", "--forget", tmp_path / "b")
    told = json.loads(out)
    folders = {str(path) for path in store.glob("[0-9][0-9]-*")}
    assert (code, told["removed"], {one["path"] for one in told["folders"]}) == (0, False, folders)
    assert call(capfd, "gc", store, "--yes", "--forget", tmp_path / "b")[0] == 0
    assert list(store.glob("[0-9][0-9]-*")) == []
    assert step_store.users(store) == {}


def test_a_run_that_drops_its_store_leaves_the_unfinished_steps_there_alone(first, recipe_for, tmp_path):
    (tokens,) = (tmp_path / "store").glob("*-tokens-*")
    (tokens / "manifest.json").unlink()
    before = {path.name: path.stat().st_mtime_ns for path in tokens.iterdir()}
    told = Told()
    pipeline.run(recipe_for(tmp_path / "a", CHEAP), reporter=told)
    assert "tokens" in told.ran
    assert {path.name: path.stat().st_mtime_ns for path in tokens.iterdir()} == before
    assert not (tmp_path / "a" / tokens.name).is_symlink()
    assert (tmp_path / "a" / tokens.name / "manifest.json").exists()


def test_a_store_is_not_pruned_while_a_run_uses_it(first, tmp_path, capfd):
    with locked(tmp_path / "store", mode="together"):
        code, _, err = call(capfd, "gc", tmp_path / "store", "--yes")
    assert code == 2
    assert "is in use by process" in err
