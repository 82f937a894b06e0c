"""Resume: a run that is killed, interrupted, starved of disk or asked again, ends in the bytes of an uninterrupted one."""

import io
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

import nextlong
from nextlong import pipeline
from nextlong.cli.main import main
from nextlong.engine.progress import Lines
from nextlong.report.plan.page import show
from tests.support.counted import total
from tests.support.killed import kill_at, kill_forked_at, stop_at
from tests.support.larger_cases import thorough

PATIENCE_S = 60
STEPS = [
    "ingest", "select", "chunk", "filter_report", "tokenizer", "meta_documents", "encoder", "embed", "index", "index_shards",
    "tune", "least_scores", "scan", "mine", "shingles", "weights",
    "draft", "referenced_chunks", "tokens", "compose",
    "rows", "parquet", "jsonl",
]  # fmt: skip


SEARCH = ["index", "index_shards", "tune", "least_scores", "scan", "mine"]
# Where only what is read matters: nothing is embedded or mined.
CHEAP = (
    "compose.method=standard",
    "compose.sequences=2",
    "ingest.shard_mb=1",
    "export.formats=[jsonl]",
)


@pytest.fixture(scope="session")
def by_workers(recipe_for):
    """As `recipe_for`, but by workers, where they are what is killed and counted."""
    return lambda run_dir, *overrides: recipe_for(run_dir, "executor=local", *overrides)


def go_on(recipe):
    """Finish what was stopped, in this process: whoever goes on writes the same bytes."""
    pipeline.run(recipe.model_copy(update={"executor": "serial"}))


def redone(recipe, **options):
    """Run in this process; return the names of the steps that were not kept, in route order."""
    told = io.StringIO()
    pipeline.run(recipe, reporter=Lines(Console(file=told)), **options)
    lines = [line.partition(": ")[::2] for line in told.getvalue().splitlines()]
    kept = [
        name
        for label, names in lines
        if label == "reused"
        for name in names.split(", ")
    ]
    ran = [label for label, _ in lines if label != "reused"]
    assert len({*kept, *ran}) == len(kept) + len(ran)
    return sorted(
        ran, key=STEPS.index
    )  # steps run side by side: which ends first is chance


def written(recipe, folder):
    """Return the file that a recipe was written to."""
    path = folder / "recipe.yaml"
    path.write_text(recipe.dump(), encoding="utf-8")
    return path


def start(recipe, folder, **options):
    """Start `nextlong run` as a user would, in a process group of its own."""
    command = [sys.executable, "-m", "nextlong", "run", str(written(recipe, folder))]
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


def complaint(capsys, recipe, folder):
    """Run the command line in this process; return what it says of the user's mistake."""
    assert main(["run", str(written(recipe, folder))]) == 2
    message = capsys.readouterr().err
    assert (
        "\nerror: " in f"\n{message}"
    )  # maybe after a note on which variant the folder opens
    assert "Traceback" not in message
    return message


def files_made(run_dir):
    return sum(1 for _ in run_dir.glob("[0-9]*/part-*"))


def parts_of(run_dir):
    """Return the pattern of what the head of a run changes where a step ends: its manifest, and the markers of its parts."""
    return f"{run_dir}/[0-9]*/.*"


# killed


@pytest.mark.thorough
def test_killed_again_and_again_and_resumed_gives_the_same_bytes(
    by_workers, shared_run, hashes_of, tmp_path
):
    recipe = by_workers(tmp_path / "run")
    path, parts = written(recipe, tmp_path), parts_of(tmp_path / "run")
    kill_at(["run", path], parts, 5)  # its workers find out by themselves
    process = stop_at(["run", path], parts, 60)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    serial = written(recipe.model_copy(update={"executor": "serial"}), tmp_path)
    kill_forked_at(["run", serial], parts, 40)
    assert not (tmp_path / "run" / "run.json").exists()
    go_on(recipe)
    assert hashes_of(tmp_path / "run") == hashes_of(shared_run)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        (
            (
                "mine.shortlist=bm25",
                "mine.shortlist_chunks=12",
                "compose.sequences=2",
                "compose.target_tokens=512",
            ),
            ["shortlist_words", "shortlist_queries", "shortlist", "embed", "mine"],
        ),
        pytest.param(
            (
                "compose.method=iclm",
                "documents.partition_size=1500",
                "iclm.max_similarity=null",
            ),
            ["clusters", "partition", "draft"],
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_run_killed_in_each_of_these_steps_and_resumed_gives_the_same_bytes(
    recipe_for, hashes_of, tmp_path, settings, steps
):
    path = written(recipe_for(tmp_path / "run", *settings), tmp_path)
    for step in steps:  # each run goes on where the one before was killed
        kill_forked_at(["run", path], f"{tmp_path}/run/[0-9]*-{step}-*", 4)
    go_on(recipe_for(tmp_path / "run", *settings))
    pipeline.run(recipe_for(tmp_path / "whole", *settings))
    assert hashes_of(tmp_path / "run") == hashes_of(tmp_path / "whole")


def alive_in_group(process):
    """Return the variants of the processes that the run has left behind, zombies aside."""
    variants = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # gone since
            variant, _, group = path.read_text().rpartition(")")[2].split()[:3]
            variants += (
                [variant] if variant != "Z" and int(group) == process.pid else []
            )
    return variants


@pytest.mark.parametrize(
    ("moment", "send", "number", "code", "line"),
    [
        (
            "at work",
            os.kill,
            signal.SIGTERM,
            143,
            "",
        ),  # kill, timeout, a container's end
        # Ctrl-C reaches the workers too.
        pytest.param(
            "while workers start",
            os.killpg,
            signal.SIGINT,
            130,
            "\n",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "at work", os.killpg, signal.SIGINT, 130, "\n", marks=pytest.mark.thorough
        ),
        pytest.param(
            "while workers start",
            os.killpg,
            signal.SIGTERM,
            143,
            "",
            marks=pytest.mark.thorough,
        ),  # a scheduler's
    ],
)
def test_interrupted_says_how_to_go_on_and_goes_on(
    by_workers,
    started,
    shared_run,
    hashes_of,
    tmp_path,
    moment,
    send,
    number,
    code,
    line,
):
    recipe = by_workers(started(tmp_path / "run"))
    at_work, first_call_of_a_worker = (
        (parts_of(tmp_path / "run"), 9),
        ("*/pymp-*/listener-*", 1),
    )
    process = stop_at(
        ["run", written(recipe, tmp_path)],
        *(at_work if moment == "at work" else first_call_of_a_worker),
    )
    send(process.pid, number)
    process.send_signal(signal.SIGCONT)
    _, message = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    assert (
        message
        == f"{line}stopped; finished steps are kept, run the same command again to resume\n"
    )
    deadline = time.monotonic() + PATIENCE_S
    while alive_in_group(
        process
    ):  # the server of the workers ends when it finds its parent gone
        assert time.monotonic() < deadline, "waited a minute in vain"
        time.sleep(0.01)
    go_on(recipe)
    assert hashes_of(tmp_path / "run") == hashes_of(shared_run)


# asked again


@pytest.mark.parametrize("workers", [3, *thorough(1)])
def test_number_of_workers_leaves_the_bytes_alone(
    by_workers, shared_run, hashes_of, tmp_path, workers
):
    pipeline.run(by_workers(tmp_path / "run", f"workers={workers}"))
    assert hashes_of(tmp_path / "run") == hashes_of(shared_run)


def test_second_run_touches_no_file(recipe_for, own_run):
    def touched():
        return {
            path: (path.stat().st_mtime_ns, path.stat().st_ino)
            for path in own_run.glob("[0-9]*/*")
        }

    before = touched()
    assert redone(recipe_for(own_run)) == []
    assert touched() == before


@pytest.fixture(scope="module")
def few(recipe_for, tmp_path_factory):
    """A function of overrides that returns a recipe of two sequences, all in one directory; that without is finished."""
    sizes = ("compose.sequences=2", "compose.target_tokens=1024", "ingest.shard_mb=1")
    recipe = partial(recipe_for, tmp_path_factory.mktemp("few") / "run", *sizes)
    pipeline.run(recipe())
    return recipe


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["workers=1", "export.formats=[jsonl]"], []),
        (["export.row_group_mb=1"], ["parquet"]),
        (
            ["compose.sequences=3"],
            ["meta_documents", *SEARCH, *STEPS[STEPS.index("draft") :]],
        ),
        (["compose.position=tail"], ["compose", "rows", "parquet", "jsonl"]),
        (
            ["compose.target_tokens=512"],
            [
                "draft",
                "referenced_chunks",
                "tokens",
                "compose",
                "rows",
                "parquet",
                "jsonl",
            ],
        ),
        (
            ["tokenizer.eos=<|endoftext|>"],
            ["tokenizer", *STEPS[STEPS.index("draft") :]],
        ),
        (
            ["encoder.lsa.dimensions=8"],
            ["encoder", "embed", *SEARCH, *STEPS[STEPS.index("draft") :]],
        ),
    ],
    ids=lambda value: ",".join(value) if "=" in "".join(value) else "",
)
def test_a_knob_makes_anew_only_what_depends_on_it(few, overrides, expected):
    assert redone(few(*overrides)) == expected
    assert redone(few()) == []


# inputs that changed


@pytest.fixture
def own_corpus(small_corpus, tmp_path):
    """A copy of the small corpus, with the run of it, to alter."""
    return Path(shutil.copytree(small_corpus, tmp_path / "corpus"))


def drop_last_line(path):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))


def test_added_input_is_read_and_one_that_vanishes_is_missed(
    recipe_for, own_corpus, tmp_path, capsys
):
    recipe = recipe_for(tmp_path / "run", f"ingest.sources.0.path={own_corpus}", *CHEAP)
    (own_corpus / "3.jsonl").rename(tmp_path / "3.jsonl")
    assert total(pipeline.run(recipe)["ingest"], "documents") == 195
    (tmp_path / "3.jsonl").rename(own_corpus / "3.jsonl")
    assert total(pipeline.run(recipe)["ingest"], "documents") == 260

    (own_corpus / "3.jsonl").rename(tmp_path / "3.jsonl")
    message = complaint(capsys, recipe, tmp_path)
    assert f": 3.jsonl of {own_corpus} is missing" in message
    assert (
        redone(recipe, changed_inputs="accept") == []
    )  # the run of three files is still there
    assert redone(recipe) == []


def test_inputs_that_were_copied_anew_are_known_by_their_bytes(
    recipe_for, own_corpus, tmp_path
):
    recipe = recipe_for(tmp_path / "run", f"ingest.sources.0.path={own_corpus}", *CHEAP)
    done = pipeline.run(recipe)
    for place, path in enumerate(sorted(own_corpus.iterdir())):
        os.utime(path, (place, place))
    plan = Console(file=io.StringIO(), width=100)
    show(recipe, plan)
    assert "to do" not in plan.file.getvalue()
    told = io.StringIO()
    pipeline.run(recipe, reporter=Lines(Console(file=told)))
    first, *others = told.getvalue().splitlines()
    assert first.startswith("inputs: hashing 4 files ")
    assert sorted(
        name for line in others for name in line.removeprefix("reused: ").split(", ")
    ) == sorted(done)
    assert redone(recipe) == []


def test_changed_inputs_are_refused_until_accepted(
    recipe_for, small_corpus, own_corpus, tmp_path, capsys
):
    recipe = recipe_for(tmp_path / "run", f"ingest.sources.0.path={own_corpus}", *CHEAP)
    before = total(pipeline.run(recipe)["ingest"], "documents")
    drop_last_line(own_corpus / "1.jsonl")
    drop_last_line(own_corpus / "3.jsonl")
    message = complaint(capsys, recipe, tmp_path)
    sizes = [(path / "1.jsonl").stat().st_size for path in (own_corpus, small_corpus)]
    assert f": {own_corpus}/1.jsonl has {sizes[0]} " in message
    assert f" {sizes[1]}, and 1 other" in message
    assert "--accept-changed-inputs" in message
    assert main(["run", str(tmp_path / "recipe.yaml"), "--accept-changed-inputs"]) == 0
    assert total(pipeline.run(recipe)["ingest"], "documents") == before - 2


def test_other_documents_are_refused_unless_asked_for(
    recipe_for, own_corpus, tmp_path, capsys
):
    run_dir, others = tmp_path / "run", tmp_path / "others.jsonl"
    recipe = recipe_for(run_dir, *CHEAP, f"ingest.sources.0.path={own_corpus}")
    pipeline.run(recipe)
    moved = own_corpus.rename(tmp_path / "moved")

    def reading(path, **changes):
        plain = recipe.model_dump(mode="json") | changes
        plain["ingest"]["sources"][0]["path"] = str(path)
        return nextlong.Recipe.from_dict(plain)

    pipeline.run(reading(moved))  # the same files at another place
    others.write_text(
        "".join((moved / "1.jsonl").read_text().splitlines(keepends=True)[1:])
    )
    message = complaint(capsys, reading(others), tmp_path)
    assert f"run_dir={run_dir} has runs" in message
    assert "(--set name=NAME)" in message
    pipeline.run(reading(others, name="others"))
    # A file of the same name and size as one that was read, with another text.
    alike = tmp_path / "alike" / "1.jsonl"
    alike.parent.mkdir()
    alike.write_bytes((moved / "1.jsonl").read_bytes().swapcase())
    message = complaint(capsys, reading(alike), tmp_path)
    assert f"run_dir={run_dir} has runs" in message


def test_file_that_is_named_and_gone_is_told(recipe_for, tmp_path, capsys):
    message = complaint(
        capsys,
        recipe_for(tmp_path / "run", "ingest.sources.0.path=/no/such.jsonl"),
        tmp_path,
    )
    assert "ingest.sources[0].path='/no/such.jsonl' " in message


def test_sources_that_reach_into_the_run_directory_are_refused(
    recipe_for, own_run, tmp_path, capsys
):
    message = complaint(
        capsys, recipe_for(own_run, f"ingest.sources.0.path={own_run.parent}"), tmp_path
    )
    assert f"run_dir={own_run} " in message
    assert f" ingest.sources[0].path='{own_run.parent}'" in message
    (folder,) = own_run.glob("*-jsonl-*")
    message = complaint(
        capsys, recipe_for(own_run, f"ingest.sources.0.path={folder}"), tmp_path
    )
    assert f"run_dir={own_run} " in message
    assert f"({folder}/" in message


def test_a_second_head_is_refused_and_leaves_the_first_alone(
    recipe_for, hashes_of, tmp_path, capsys
):
    recipe = recipe_for(tmp_path / "run", *CHEAP)
    first = stop_at(["run", written(recipe, tmp_path)], parts_of(tmp_path / "run"))
    message = complaint(capsys, recipe, tmp_path)
    assert f" process {first.pid} on " in message
    first.send_signal(signal.SIGCONT)
    first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 0
    pipeline.run(recipe_for(tmp_path / "alone", *CHEAP))
    assert hashes_of(tmp_path / "run").items() >= hashes_of(tmp_path / "alone").items()


def test_a_killed_worker_costs_its_tasks_and_the_next_run_goes_on(
    by_workers, shared_run, hashes_of, tmp_path
):
    recipe = by_workers(tmp_path / "run")
    process = stop_at(["run", written(recipe, tmp_path)], parts_of(tmp_path / "run"))
    for pid in workers_of(process):
        os.kill(pid, signal.SIGKILL)
    process.send_signal(signal.SIGCONT)
    _, message = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    told = r"error: a worker process: it was killed, [^:]*(, while running \w+ task \d+.*)?; run again .* finished steps are kept"
    assert re.match(told, message)
    go_on(recipe)
    assert hashes_of(tmp_path / "run") == hashes_of(shared_run)


def workers_of(process):
    """Return the processes that the server of a run has forked: those that work."""
    of_parent = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            pid, rest = (
                int(path.parent.name),
                path.read_text().rpartition(")")[2].split(),
            )
            of_parent.setdefault(int(rest[1]), []).append(pid)
    return [
        worker
        for child in of_parent.get(process.pid, [])
        for worker in of_parent.get(child, [])
    ]


# files of a run that changed


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    os.utime(
        path, ns=(1, 1)
    )  # another time, even where the clock of the file system is coarse


@pytest.mark.parametrize(
    ("harm", "pattern", "variant"),
    [
        (cut, "*-ingest-*/part-00000.0001.documents.arrow", "was altered or truncated"),
        (flip, "*-embed-*/part-00003.vectors.npy", "was altered or truncated"),
        (Path.unlink, "*-tokens-*/part-00000.00002.ids.npy", "is missing"),
        (flip, "*-parquet-*/part-00000.parquet", "was altered or truncated"),
    ],
)
def test_harmed_file_is_refused_by_name_and_the_advice_mends_it(
    recipe_for, shared_run, own_run, hashes_of, tmp_path, capsys, harm, pattern, variant
):
    (path,) = own_run.glob(pattern)
    harm(path)
    message = complaint(capsys, recipe_for(own_run), tmp_path)
    assert f"{path}: " in message
    assert variant in message
    assert f" {path.parent} and" in message
    shutil.rmtree(path.parent)
    assert redone(recipe_for(own_run)) == [path.parent.name.split("-")[1]]
    assert hashes_of(own_run) == hashes_of(shared_run)


# a disk that is too small


class SmallDisk:
    """A folder that a run does not fit into: a tiny file system, or, without the right to mount one, small files only."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)]
        self._mounted = (
            os.geteuid() == 0
            and subprocess.run(mount, capture_output=True).returncode == 0
        )
        self.options = {} if self._mounted else {"preexec_fn": self._allow_small_files}

    def _allow_small_files(self):
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    def grow(self):
        if self._mounted:
            subprocess.run(
                ["mount", "-o", "remount,size=50m", str(self.folder)], check=True
            )

    def close(self):
        if self._mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


@pytest.fixture
def small_disk(tmp_path):
    disk = SmallDisk(tmp_path / "disk")
    yield disk
    disk.close()


def test_run_that_fills_the_disk_says_so_and_goes_on_when_there_is_room(
    by_workers, shared_run, hashes_of, tmp_path, small_disk
):
    recipe = by_workers(small_disk.folder / "run")
    process = start(recipe, tmp_path, **small_disk.options)
    _, message = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert "Traceback" not in message
    assert any(words in message for words in ("the disk is full", "ulimit -f"))
    assert "run again" in message
    assert 0 < files_made(small_disk.folder / "run") < files_made(shared_run)
    small_disk.grow()
    go_on(recipe)
    assert hashes_of(small_disk.folder / "run") == hashes_of(shared_run)
