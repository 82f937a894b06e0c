"""What workers have imported before their first task."""

import importlib.util
import os
import subprocess
import sys
from multiprocessing import forkserver

import pytest

from nextlong import workers
from nextlong.engine import local
from nextlong.recipe import Encoder


@pytest.mark.parametrize("model", ["lsa", "sentence-transformers:m", "openai:x"])
def test_what_is_preloaded_can_be_imported(model):
    names = workers.preloaded(Encoder(model=model))
    assert "nextlong.pipeline" in names
    assert all(importlib.util.find_spec(name) for name in names if name.startswith("nextlong"))


def test_the_server_that_workers_are_forked_from_has_one_thread(monkeypatch):
    given = []
    monkeypatch.setattr(forkserver, "set_forkserver_preload", given.append)
    monkeypatch.setattr(forkserver, "ensure_running", lambda: given.append(os.environ["OMP_NUM_THREADS"]))
    local.start_server(["pyarrow"])
    assert given == [["pyarrow"], "1"]


def test_naming_what_workers_import_does_not_import_the_pipeline():
    code = "import sys, nextlong.workers; print('nextlong.pipeline' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
