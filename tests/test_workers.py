"""What workers have imported before their first task."""

import importlib.util
import os
import subprocess
import sys
from multiprocessing import forkserver

import pytest

from nextlong import workers
from nextlong.recipe import Recipe


def recipe(**keys):
    common = {"ingest": {"sources": [{"path": "corpus"}]}, "tokenizer": {"source": "t.json"}, "run_dir": "run"}
    return Recipe.from_dict({**common, **keys})


@pytest.mark.parametrize("model", ["lsa", "sentence-transformers:m", "openai:x"])
def test_what_is_preloaded_can_be_imported(model):
    names = workers.preloaded(recipe(encoder={"model": model}))
    assert "nextlong.pipeline" in names
    assert all(importlib.util.find_spec(name) for name in names if name.startswith("nextlong"))


@pytest.mark.parametrize(("executor", "starts"), [("local", True), ("serial", False)])
def test_the_server_is_started_where_workers_are_forked_from_it(monkeypatch, executor, starts):
    given = []
    monkeypatch.setattr(forkserver, "set_forkserver_preload", given.append)
    monkeypatch.setattr(forkserver, "ensure_running", lambda: given.append(os.environ["OMP_NUM_THREADS"]))
    asked = recipe(executor=executor)
    workers.start_server(asked)
    assert given == ([workers.preloaded(asked), "1"] if starts else [])


def test_naming_what_workers_import_does_not_import_the_pipeline():
    code = "import sys, nextlong.workers; print('nextlong.pipeline' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
