"""A small corpus, a recipe for it, and one finished run that all tests share (copy it before you alter it)."""

import gc
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

import pytest
from hypothesis import settings

# Before NumPy and FAISS are loaded: on small arrays and texts, threads of two test
# processes wait for each other more than they compute. A twelfth of the time of tests
# that tokenize.
os.environ.update(
    OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false"
)

import nextlong
from nextlong import pipeline
from nextlong.cli.main import main
from nextlong.engine.local import LocalExecutor
from nextlong.recipe import Recipe
from tests.support.executing import carry_out

# What drives a browser has an environment of its own (.ci/run browser).
collect_ignore = [] if find_spec("playwright") else ["browser", "view/test_guard.py"]

# Of tests started in the background Ctrl-C is ignored, and so it would be of the runs
# that they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Time is never a verdict here. `make test` draws fewer examples than Hypothesis would
# by itself, and CI as many.
settings.register_profile("nextlong", deadline=None, max_examples=20)
settings.register_profile("thorough", deadline=None)
settings.load_profile("nextlong")


def pytest_collection_finish():
    """Keep what was imported and collected out of every later search for cycles, and search seldom: it took 3 % of the time."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


# No test can see what a power cut would lose, and waiting for the disk took a third of
# their time. Commands in processes of their own do wait for it.
os.fsync = lambda file: None

# Where memory has room, so have folders of tests: to make a file on a disk took the
# system thirty times as long.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

TOPICS = {
    "sea": "harbour tide anchor sail current reef vessel captain lighthouse storm rope deck cargo gull salt wave",
    "bread": "flour yeast oven dough crust knead starter rye butter loaf proof bake salt grain mill slice",
    "stars": "orbit telescope nebula galaxy comet lens spectrum planet eclipse gravity dust light probe moon ring dwarf",
    "law": "court judge appeal statute clause witness verdict treaty plaintiff counsel oath bail jury tort deed lien",
    "garden": "soil seed compost prune hedge bloom frost trellis bulb mulch root spade orchard shade vine graft",
}
COMMON = "the of and a to in is that it was for on are with as be at this from which when where not also over after"

# What a run writes beside its data: times, and where it ran.
RECORDS = {
    "manifest.json",
    "run.json",
    "inputs.json",
    "report.html",
    ".lock",
}


def write_corpus(folder, *, documents=260):
    """Write documents of 100 to 2,000 characters on five topics as four JSONL files."""
    draw = random.Random(20)
    files = [[] for _ in range(4)]
    for number in range(documents):
        topic = draw.choice(sorted(TOPICS))
        words = TOPICS[topic].split() * 2 + COMMON.split()
        sentences = [
            " ".join(draw.choices(words, k=draw.randint(5, 14))).capitalize() + "."
            for _ in range(draw.choice([2, 4, 8, 16, 24]))
        ]
        text = "\n".join(
            " ".join(sentences[first : first + 3])
            for first in range(0, len(sentences), 3)
        )
        files[number % 4].append(
            json.dumps({"id": f"{topic}-{number}", "text": text}) + "\n"
        )
    folder.mkdir(parents=True)
    for number, lines in enumerate(files):
        (folder / f"{number}.jsonl").write_text("".join(lines), encoding="utf-8")


@pytest.fixture(scope="session")
def small_corpus(tmp_path_factory):
    """A folder of four JSONL files; read-only."""
    folder = tmp_path_factory.mktemp("small") / "corpus"
    write_corpus(folder)
    return folder


@pytest.fixture(scope="session")
def warm_workers():
    """The server that workers are forked from, with what a fit needs as well: a run would import it each time anew."""
    preload = [
        "nextlong.pipeline",
        "nextlong.retrieval.encoders.lsa",
        "faiss",
        "pyarrow.parquet",
    ]
    with LocalExecutor(1, preload=preload) as executor:
        assert list(carry_out(executor, len, [("warm",)])) == [4]


@pytest.fixture(scope="session")
def recipe_for(small_corpus, warm_workers):
    """A function of run_dir and overrides that returns a recipe: twelve sequences of the small corpus, one file in two shards."""

    def recipe(run_dir, *overrides):
        plain = {
            "run_dir": str(run_dir),
            "executor": "serial",  # a third of the time of two workers, on two cores that two test processes share
            "workers": 2,
            "ingest": {
                "sources": [{"path": str(small_corpus), "name": "small"}],
                "shard_mb": 0.0355,
            },
            "chunk": {"max_chars": 256},
            "encoder": {"lsa": {"dimensions": 16}},
            "tokenizer": {"train": 512},
            "compose": {"sequences": 12, "target_tokens": 2048},
            "export": {"formats": ["parquet", "jsonl"]},
        }
        return Recipe.from_dict(plain, overrides=overrides)

    return recipe


@pytest.fixture(scope="session")
def hashes_of():
    """A function of run_dir that returns path → hash of each data file, and of leftovers, for a run must leave none."""

    def hashes(run_dir):
        return {
            str(path.relative_to(run_dir)): hashlib.sha256(
                path.read_bytes()
            ).hexdigest()
            for path in sorted(run_dir.rglob("*"))
            if path.is_file()
            and path.name not in RECORDS
            and path.parent.name != "variants"
        }

    return hashes


@pytest.fixture(scope="session")
def shared_run(recipe_for, tmp_path_factory):
    """The run directory of one uninterrupted run; read-only."""
    run_dir = tmp_path_factory.mktemp("shared") / "run"
    pipeline.run(recipe_for(run_dir))
    return run_dir


@pytest.fixture(scope="session")
def started(shared_run):
    """A function of run_dir that puts the shared run's steps before its drafts there: a recipe reuses what it has in common."""

    def start(run_dir, run=shared_run):
        for step in takewhile(
            lambda step: "-draft-" not in step.name, sorted(run.glob("[0-9]*"))
        ):
            shutil.copytree(step, run_dir / step.name)
        return run_dir

    return start


@pytest.fixture(scope="session")
def few_recipe(recipe_for):
    """As `recipe_for`, for four sequences of half the length."""
    few = ("compose.sequences=4", "compose.target_tokens=1024")
    return lambda run_dir, *overrides: recipe_for(run_dir, *few, *overrides)


@pytest.fixture(scope="session")
def few_run(few_recipe, started, tmp_path_factory):
    """A run of them; read-only."""
    run_dir = started(tmp_path_factory.mktemp("few") / "run")
    pipeline.run(few_recipe(run_dir))
    assert main(["gc", str(run_dir), "--yes"]) == 0  # what only the shared run needs
    return run_dir


@pytest.fixture
def own_few_run(few_run, tmp_path):
    """A copy of it to alter."""
    return Path(shutil.copytree(few_run, tmp_path / "run"))


@pytest.fixture(scope="session")
def shared_ids(shared_run):
    """The token ids of each sequence of the shared run, by its id."""
    return {
        sequence.id: sequence.input_ids.tolist()
        for sequence in nextlong.open(shared_run).sequences()
    }


@pytest.fixture
def own_run(shared_run, tmp_path):
    """A copy of the shared run to alter."""
    return Path(shutil.copytree(shared_run, tmp_path / "run"))


@pytest.fixture(scope="session")
def shorter_run(recipe_for, started, tmp_path_factory):
    """A run of half the length, of the same corpus and tokenizer."""
    run_dir = started(tmp_path_factory.mktemp("shorter") / "run")
    pipeline.run(
        recipe_for(
            run_dir, "compose.target_tokens=1024", "compose.sequences=30", "workers=1"
        )
    )
    return run_dir


@pytest.fixture
def command():
    """A function that runs `nextlong` in a process of its own, alone or as several ranks, on one thread each."""

    def run(*arguments, ranks=1, check=True, **environment):
        launcher = [sys.executable, "-m"]
        if ranks > 1:
            launcher += [
                "torch.distributed.run",
                "--standalone",
                f"--nproc-per-node={ranks}",
                "-m",
            ]
        return subprocess.run(
            [*launcher, "nextlong", *map(str, arguments)],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1",
                **environment,
            },
            capture_output=True,
            text=True,
            check=check,
        )

    return run
