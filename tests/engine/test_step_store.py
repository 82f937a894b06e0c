import json
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import nextlong
from nextlong import pipeline
from nextlong.cli import main as cli_main
from nextlong.engine import runner, step_store
from nextlong.engine.step import Step
from nextlong.engine.step_store import StepStore
from nextlong.errors import RecipeError, RunError
from sharing import CHEAP, Told, stored


@pytest.fixture(scope="module")
def shared_store(recipe_for, tmp_path_factory):
    """A folder with a store and the run `a` that filled it; tests add runs of other names, and change nothing else."""
    folder = tmp_path_factory.mktemp("shared_store")
    pipeline.run(stored(recipe_for, folder, "a"))
    return folder


@pytest.fixture
def first(recipe_for, tmp_path):
    """The same, in the test's own folder, to alter."""
    pipeline.run(stored(recipe_for, tmp_path, "a"))


def call(capfd, *arguments):
    capfd.readouterr()
    code = cli_main.main([str(argument) for argument in arguments])
    return code, *capfd.readouterr()


def test_a_second_run_directory_makes_only_what_comes_after_the_tokens(shared_store, recipe_for, shared_run, hashes_of):
    told = Told()
    pipeline.run(stored(recipe_for, shared_store, "second"), reporter=told)
    assert told.ran == ["compose", "rows", "parquet", "jsonl"]
    assert "embed" in told.there
    assert {path.name for path in (shared_store / "second").glob("[0-9][0-9]-*") if not path.is_symlink()} == {
        path.name for path in (shared_store / "second").glob("[0-9][0-9]-*") if path.name[3:].split("-")[0] in told.ran
    }
    alone = {name: own for name, own in hashes_of(shared_run).items() if "/part" in name}
    together = {
        f"{folder.name}/{path.name}": hashes_of(folder)[path.name]
        for folder in (shared_store / "second").glob("[0-9][0-9]-*")
        for path in folder.glob("part*")
    }
    assert together == alone


def test_another_setting_shares_what_stands_above_it(shared_store, recipe_for):
    told = Told()
    pipeline.run(stored(recipe_for, shared_store, "standard", "compose.method=standard"), reporter=told)
    assert {"ingest", "chunk", "tokenizer"} <= set(told.there)
    assert "draft" in told.ran
    assert len(nextlong.open(shared_store / "standard")) == 12


def test_runs_of_a_store_verify_and_move(first, recipe_for, tmp_path, capfd):
    assert call(capfd, "verify", tmp_path / "a")[0] == 0
    shutil.move(tmp_path / "a", tmp_path / "elsewhere")
    assert call(capfd, "verify", tmp_path / "elsewhere")[0] == 0


def test_a_store_named_from_the_working_directory_moves_with_its_runs(recipe_for, tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    pipeline.run(recipe_for("runs/a", "store=store", CHEAP))
    (tmp_path / "project").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert len(list(nextlong.open("moved/runs/a").sequences())) == 12


def test_a_run_that_had_its_own_steps_keeps_them(recipe_for, own_run, tmp_path):
    told = Told()
    pipeline.run(recipe_for(own_run, f"store={tmp_path / 'store'}", "executor=serial"), reporter=told)
    assert told.ran == []
    assert step_store.links(own_run) == []


def test_two_runs_at_once_make_each_step_once(recipe_for, tmp_path):
    recipes = []
    for name in ("a", "b"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(stored(recipe_for, tmp_path, name, CHEAP).dump())
        recipes.append(path)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "nextlong", "run", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for path in recipes
    ]
    outputs = [process.communicate()[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    folders = sorted(path.name for path in (tmp_path / "store").glob("[0-9][0-9]-*"))
    assert len({name.partition("-")[2] for name in folders}) == len(folders)
    assert len(nextlong.open(tmp_path / "a")) == len(nextlong.open(tmp_path / "b")) == 12


def test_a_step_that_another_run_makes_is_waited_for(first, recipe_for, tmp_path, monkeypatch):
    recipe = stored(recipe_for, tmp_path, "b")
    (embed,) = (tmp_path / "store").glob("*-embed-*")
    manifest = (embed / "manifest.json").read_bytes()
    (embed / "manifest.json").unlink()
    step = pipeline.route(recipe, pipeline.prepare(recipe))
    (step,) = [one for one in step if one.name == "embed"]
    holder = step_store.StepStore(tmp_path / "store", tmp_path / "c").claim(step)
    looks = []

    def finish(seconds):
        looks.append(seconds)
        (embed / "manifest.json").write_bytes(manifest)
        holder.close()

    monkeypatch.setattr(runner.time, "sleep", finish)
    told = Told()
    pipeline.run(recipe, reporter=told)
    assert len(looks) == 1
    assert "embed" in told.there
    assert [text for text in told.said if text.startswith("embed: process ") and text.endswith("waiting")]


def test_a_kill_leaves_tasks_that_another_run_goes_on_with(first, recipe_for, tmp_path):
    (embed,) = (tmp_path / "store").glob("*-embed-*")
    plain = json.loads((embed / "manifest.json").read_text())
    for part in plain["parts"][:-1]:
        (embed / f".part-{part['index']:05d}.json").write_text(json.dumps(part))
    (embed / "manifest.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in embed.glob("part-*.npy")}
    pipeline.run(stored(recipe_for, tmp_path, "b"))
    changed = [path for path, time in before.items() if path.stat().st_mtime_ns != time]
    assert len(changed) == 1 < len(before)


def test_files_that_the_store_knows_are_the_same_to_another_run_though_touched(recipe_for, small_corpus, tmp_path):
    corpus = tmp_path / "corpus"
    shutil.copytree(small_corpus, corpus)
    source = f"ingest.sources[0].path={corpus}"
    pipeline.run(stored(recipe_for, tmp_path, "a", CHEAP, source))
    for path in corpus.iterdir():
        path.touch()
    told = Told()
    pipeline.run(stored(recipe_for, tmp_path, "b", CHEAP, source), reporter=told)
    assert "ingest" in told.there
    (corpus / "0.jsonl").write_text('{"text": "another"}\n' * 3)
    told = Told()
    pipeline.run(stored(recipe_for, tmp_path, "c", CHEAP, source), reporter=told)
    assert "ingest" in told.ran


def test_plan_and_list_say_what_lies_in_the_store(shared_store, recipe_for, tmp_path, capfd):
    path = tmp_path / "b.yaml"
    path.write_text(stored(recipe_for, shared_store, "listed", CHEAP, "compose.target_tokens=1024").dump())
    _, out, _ = call(capfd, "plan", path)
    assert "MB in the store" in out
    assert call(capfd, "run", path)[0] == 0
    _, out, _ = call(capfd, "list", shared_store / "listed")
    assert f"are in the store {shared_store / 'store'}, shared with {shared_store}" in out
    _, out, _ = call(capfd, "list", shared_store / "store", "--json")
    steps = json.loads(out)
    assert {"ingest", "embed", "tokens"} <= {step["name"].split("-")[1] for step in steps}
    assert all(step["run_dirs"] for step in steps)
    _, out, _ = call(capfd, "list", shared_store / "store")
    assert str(shared_store / "a") in out


def test_runs_on_other_routes_that_link_at_once_meet_in_one_folder(tmp_path):
    (tmp_path / "store").mkdir()
    step = Step("one", 1, {}, (), lambda _: [])
    runs = [StepStore(tmp_path / "store", tmp_path / f"run-{number}") for number in range(16)]
    together = threading.Barrier(len(runs))

    def link(number):
        together.wait()
        runs[number].link(step, number + 1)

    with ThreadPoolExecutor(len(runs)) as pool:
        list(pool.map(link, range(len(runs))))
    (folder,) = (tmp_path / "store").glob("[0-9][0-9]-*")
    assert all((run.run_dir / folder.name).resolve() == folder for run in runs)


def test_a_link_to_another_store_stays_only_where_its_step_is_finished(tmp_path):
    one, run = Step("one", 1, {}, (), lambda _: []), tmp_path / "a"
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        StepStore(tmp_path / name, run).link(one, 1)
        (link,) = step_store.links(run)
        assert link.resolve().parent == tmp_path / name
    (link / "manifest.json").write_text("{}")
    StepStore(tmp_path / "first", run).link(one, 1)
    assert link.resolve().parent == tmp_path / "second"


def test_variants_of_a_store_are_refused(shared_store, capfd):
    code, _, err = call(capfd, "gc", shared_store / "store", "--drop", "base")
    assert code == 2
    assert "is a store, which has no variants" in err


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["run_dir=runs/a", "store=runs"], "store=runs and run_dir=runs/a lie in each other"),
        (["run_dir=runs", "store=runs/store"], "lie in each other; give the store a folder of its own"),
        (["run_dir=runs", "store=./runs"], "lie in each other"),
        (["store=s3://bucket/store"], "store=s3://bucket/store is not a local folder"),
    ],
)
def test_what_can_be_no_store_is_refused(recipe_for, tmp_path, overrides, message):
    with pytest.raises(RecipeError) as caught:
        recipe_for(tmp_path / "run", *overrides)
    assert message in str(caught.value)


def test_a_store_among_the_inputs_is_refused(recipe_for, small_corpus, tmp_path):
    with pytest.raises(RunError, match="is inside ingest.sources"):
        pipeline.run(recipe_for(tmp_path / "run", f"store={small_corpus / 'store'}"))
