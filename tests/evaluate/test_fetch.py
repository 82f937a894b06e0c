"""Fetching data: the archive's members, hub files and URLs from a local server, and one table of what became of each."""

import hashlib
import io
import json
import tarfile

import pytest
from tests.support.file_server import requested, served_files

from nextlong import download as downloads
from nextlong.cli.main import main
from nextlong.evaluate import fetch
from nextlong.evaluate.data import ELSEWHERE, HUB, HubFile, OtherFile
from nextlong.evaluate.registry import chosen

HUB_FILE = "nolima/needle_set.json"
CONTENT = b'{"rows": "' + b"tide " * 40_000 + b'"}'
SHA256 = hashlib.sha256(CONTENT).hexdigest()
RESOLVED = "/datasets/ocean/tides/resolve/main/tides.json"
ARCHIVE_PATH = "/datasets/princeton-nlp/HELMET/resolve/main/data.tar.gz"
MEMBERS = {
    name: name.encode() * 9000
    for name in (
        "data/kilt/nq-dev-multikilt_1000_k50_dep6.jsonl",
        "data/kilt/nq-dev-multikilt_1000_k105_dep6.jsonl",
        "data/kilt/nq-train-multikilt_1000_k3_dep6.jsonl",
        "data/other/never-asked.jsonl",
    )
}


def archive():
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as tar:
        for name, content in MEMBERS.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return written.getvalue()


ARCHIVE = archive()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(downloads, "_FIRST_WAIT_S", 0.0)
    files = {RESOLVED: CONTENT, ARCHIVE_PATH: ARCHIVE, "/direct.csv": b"a,b\n"}
    with served_files(files) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield running


@pytest.fixture
def fetched(tmp_path, quiet):
    return lambda *names: fetch.fetch(names, tmp_path, quiet)


@pytest.fixture
def quiet():
    from rich.console import Console

    return Console(quiet=True)


def publish(monkeypatch, **fields):
    monkeypatch.setitem(HUB, HUB_FILE, HubFile("ocean/tides", "tides.json", **fields))


@pytest.mark.parametrize("sha256", [SHA256, None])
def test_a_hub_file_is_fetched_once_and_checked(
    sha256, server, fetched, tmp_path, monkeypatch
):
    publish(monkeypatch, sha256=sha256)
    server.etags[RESOLVED] = SHA256
    (file,) = fetched(HUB_FILE)
    assert (file.state, file.note, file.sha256) == ("fetched", "ocean/tides", SHA256)
    assert (tmp_path / HUB_FILE).read_bytes() == CONTENT
    assert fetched(HUB_FILE)[0].state == "have"
    assert requested(server, RESOLVED) == [0]


@pytest.mark.parametrize("pinned", [True, False])
def test_a_file_of_another_hash_never_gets_its_place(
    pinned, server, fetched, tmp_path, monkeypatch
):
    publish(monkeypatch, sha256="0" * 64 if pinned else None)
    server.etags[RESOLVED] = "0" * 64
    (file,) = fetched(HUB_FILE)
    assert file.state == "failed"
    assert SHA256 in file.note
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_one_that_fails_does_not_keep_the_others_away(
    server, fetched, tmp_path, monkeypatch
):
    publish(monkeypatch, revision="gone")
    direct = OtherFile("a test", url=f"{server.url}/direct.csv")
    monkeypatch.setitem(ELSEWHERE, "icl/banking77/test.csv", direct)
    failed, good = fetched(HUB_FILE, "icl/banking77/test.csv")
    assert (failed.state, good.state) == ("failed", "fetched")
    assert (tmp_path / "icl/banking77/test.csv").read_bytes() == b"a,b\n"


def test_only_the_asked_lengths_are_fetched_of_helmets_archive(
    server, fetched, tmp_path
):
    names = fetch.files_of(chosen(["helmet"], ["nq"]), [8192])
    assert [file.state for file in fetched(*names)] == ["fetched", "fetched"]
    found = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(found) == [
        "nq-dev-multikilt_1000_k50_dep6.jsonl",
        "nq-train-multikilt_1000_k3_dep6.jsonl",
    ]
    names = fetch.files_of(chosen(["helmet"], ["nq"]), [8192, 16_384])
    states = {file.name.rpartition("_k")[2]: file.state for file in fetched(*names)}
    assert states["105_dep6.jsonl"] == "fetched"
    assert states["50_dep6.jsonl"] == "have"


def test_the_benchmarks_own_samples_are_fetched_too():
    names = fetch.files_of(chosen([], ["ruler_mk_needle"]), [8192])
    assert names == ["helmet/ruler/niah_multikey_2/validation_8192.jsonl"]


def test_a_member_that_the_archive_lacks_is_named(server, fetched):
    found, missing = fetched(
        "helmet/kilt/nq-train-multikilt_1000_k3_dep6.jsonl", "helmet/kilt/gone.jsonl"
    )
    assert (found.state, missing.state) == ("fetched", "failed")
    assert "data/kilt/gone.jsonl" in missing.note


def test_what_is_fetched_by_hand_has_its_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        fetch, "_one_file", lambda name, *_: fetch.FetchedFile(name, "have")
    )
    out = tmp_path / "a folder"
    arguments = ["--suite", "ruler,needle", "--out", str(out)]
    assert main(["evaluate", "data", *arguments]) == 0
    told = capsys.readouterr().out
    assert f"cp PaulGrahamEssays.json '{out}/ruler/PaulGrahamEssays.json'" in told
    assert main(["evaluate", "data", *arguments, "--json"]) == 0
    states = {
        file["file"]: file["state"] for file in json.loads(capsys.readouterr().out)
    }
    assert states["ruler/PaulGrahamEssays.json"] == "by hand"


def test_a_failure_ends_with_exit_code_2_after_the_table(
    server, tmp_path, capsys, monkeypatch
):
    arguments = ["--suite", "nolima", "--lengths", "8k", "--out", str(tmp_path)]
    assert main(["evaluate", "data", *arguments]) == 2
    said = capsys.readouterr()
    assert "needle_set.json" in said.out
    assert "run the same command again" in " ".join(said.err.split())


def test_an_unknown_suite_is_refused(tmp_path, capsys):
    arguments = ["--suite", "tides", "--out", str(tmp_path)]
    assert main(["evaluate", "data", *arguments]) == 2
    assert "--suite tides: unknown suite" in capsys.readouterr().err


def test_every_file_that_a_task_reads_has_a_place():
    names = fetch.files_of(chosen([], []), [8192, 131_072])
    unknown = [
        name
        for name in names
        if name not in HUB and name not in ELSEWHERE and not name.startswith("helmet/")
    ]
    assert unknown == []
