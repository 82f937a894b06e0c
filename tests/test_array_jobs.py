from contextlib import contextmanager
from pathlib import Path

import pytest

from nextlong import array_jobs, pipeline
from nextlong.engine import shared
from nextlong.engine.shared import Shared
from nextlong.engine.step import Step


def stored(recipe_for, folder, name, *overrides):
    return recipe_for(folder / name, f"store={folder / 'store'}", "executor=serial", *overrides)


def test_array_jobs_of_one_run_that_link_at_once_find_one_link(tmp_path, monkeypatch):
    (tmp_path / "store").mkdir()
    step, job = Step("one", 1, {}, (), lambda _: []), Shared(tmp_path / "store", tmp_path / "run")
    known = shared.alone

    @contextmanager
    def alone_after_another_job(path):
        monkeypatch.setattr(shared, "alone", known)
        job.link(step, 1)
        with known(path):
            yield

    monkeypatch.setattr(shared, "alone", alone_after_another_job)
    job.link(step, 1)
    (link,) = shared.links(job.run_dir)
    assert link.resolve().parent == tmp_path / "store"


@pytest.mark.parametrize("has_folder", [False, True])
def test_array_jobs_that_drop_their_store_at_once_take_a_link_away_once(tmp_path, monkeypatch, has_folder):
    (tmp_path / "store").mkdir()
    step, run = Step("one", 1, {}, (), lambda _: []), tmp_path / "run"
    Shared(tmp_path / "store", run).link(step, 1)
    (link,) = shared.links(run)
    known = Path.exists

    def another_job_is_first(path):
        is_there = known(path)
        link.unlink()
        if has_folder:
            link.mkdir()
        return is_there

    with monkeypatch.context() as patched:
        patched.setattr(Path, "exists", another_job_is_first)
        shared.unlink_unfinished(step, run)
    assert link.is_dir() == has_folder
    assert shared.links(run) == []


def test_array_jobs_meet_in_the_store(recipe_for, tmp_path):
    recipe = stored(recipe_for, tmp_path, "a")
    array_jobs.run_before(recipe, "embed")
    shares = [array_jobs.run_share(recipe, "embed", part=(k, 2)) for k in (1, 2)]
    assert sum(ran for ran, _ in shares) == shares[0][1] > 1
    (embed,) = (tmp_path / "store").glob("*-embed-*")
    before = {path: path.stat().st_mtime_ns for path in embed.glob("part-*.npy")}
    pipeline.run(stored(recipe_for, tmp_path, "b"))
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert Path(tmp_path / "b").exists()
