"""A worker runs thousands of tasks: none may leave a file open or mapped."""

import gc
import json
import resource
import subprocess
import sys
from functools import partial

import pytest

from nextlong import checks, pipeline
from nextlong.methods import contexts
from nextlong.plugins import FORMATS, METHODS
from nextlong.sequences.tokenizer import END_OF_TEXT
from tests.support.copying_model import CopyingModel
from tests.support.larger_cases import thorough
from tests.support.open_files import DESCRIPTORS, RepeatingExecutor

pytestmark = pytest.mark.skipif(
    not DESCRIPTORS.is_dir(), reason="open files are counted in /proc"
)

TASKS = 50
OPEN_FILES = 96
# torchtitan needs sequences of another length.
FORMATS_OF_ONE_LENGTH = [name for name in FORMATS.built_in if name != "torchtitan"]
# All methods, and settings with which a run has the steps that others lack.
CASES = {method: (f"compose.method={method}",) for method in METHODS.built_in}
CASES["entropy"] += (
    "scorer.model=tests/copying",
    "entropy.deviations=0",
    "entropy.candidates=2",
    "compose.sequences=2",
)
CASES["filtered"] = (
    "ingest.shard_mb=0.01",
    "ingest.dedup=minhash",
    "ingest.sources[0].filter=\"id != ''\"",
    "decontaminate.files=[EVALUATION]",
    f"export.formats={json.dumps(FORMATS_OF_ONE_LENGTH)}",
    "export.validation=0.2",
    f"tokenizer.eos={END_OF_TEXT}",
)
CASES["searched"] = ("search.index='IVF4,SQ8'", "compose.max_uses=30")
CASES["shortlisted"] = ("mine.shortlist=bm25",)


@pytest.fixture
def left_open(recipe_for, started, tmp_path, monkeypatch):
    """Run a recipe; return what the repeated tasks of each step left open."""
    (tmp_path / "eval.txt").write_text(
        "which questions of the examination are the hardest?\n"
    )

    def run(*overrides, from_scratch):
        run_dir = tmp_path / "run"
        if not from_scratch:
            started(run_dir)
        evaluation = str(tmp_path / "eval.txt")
        named = [one.replace("EVALUATION", evaluation) for one in overrides]
        executor = RepeatingExecutor(run_dir, tmp_path / "scratch", times=TASKS)
        monkeypatch.setattr(pipeline, "executor_for", lambda *_, **__: executor)
        monkeypatch.setattr(contexts, "load_scorer", lambda _: CopyingModel())
        monkeypatch.setattr(checks, "check_scorer", lambda *_, **__: None)
        # Workers look for reference cycles rarely, so none may keep a file open.
        gc.disable()
        try:
            pipeline.run(recipe_for(run_dir, "compose.min_gap_tokens=8", *named))
        finally:
            gc.enable()
        return executor.left_open

    return run


@pytest.mark.parametrize(
    "case",
    [
        "nextlong",
        "filtered",
        *thorough(*sorted(CASES.keys() - {"nextlong", "filtered"})),
    ],
)
def test_no_task_of_any_step_leaves_a_file_open(left_open, case):
    counts = left_open(*CASES[case], from_scratch=case == "nextlong")
    assert {"tokens", "compose"} <= counts.keys()
    is_filtered = case == "filtered"
    assert is_filtered == ({"line_counts", "minhash", "decontaminate"} <= counts.keys())
    for step, after_each in counts.items():
        # The first run of a task may fill caches; a thread of Arrow may close a file a
        # moment after the task ends, so the fewest open files of several runs are
        # compared.
        begun, ended = after_each[1:10], after_each[-10:]
        assert min(begun) == min(ended), step


def test_a_corpus_may_have_more_shards_than_a_process_open_files(recipe_for, tmp_path):
    run_dir = tmp_path / "run"
    recipe = recipe_for(
        run_dir,
        "executor=local",
        "workers=1",
        "ingest.shard_mb=0.0015",
        "ingest.dedup=minhash",
        "compose.min_gap_tokens=8",
    )
    (tmp_path / "r.yaml").write_text(recipe.dump())
    limit = (OPEN_FILES, OPEN_FILES)
    for arguments in (["run", tmp_path / "r.yaml"], ["verify", run_dir]):
        done = subprocess.run(
            [sys.executable, "-m", "nextlong", *map(str, arguments)],
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_NOFILE, limit),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    shards = list(run_dir.glob("*-ingest-*/*.documents.arrow"))
    assert len(shards) > OPEN_FILES
