"""Data files from the hub: fetched from a server that speaks as the hub does, checked, and never half there."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from nextlong.cli.main import main
from nextlong.evaluate import data
from nextlong.evaluate.data import HubFile

CONTENT = b'{"rows": "' + b"tide " * 40_000 + b'"}'
SHA256 = hashlib.sha256(CONTENT).hexdigest()
COMMIT = "f4c69fae7cf81f7ca26b9fee34b392a50f6b8a1d"


@pytest.fixture
def hub(monkeypatch):
    """A server with one file, as the hub serves those of Git LFS: its ETag is the file's SHA-256."""

    class Handler(BaseHTTPRequestHandler):
        content, named, asked = CONTENT, SHA256, []

        def do_HEAD(self):
            self.answer()

        def do_GET(self):
            self.answer()
            self.wfile.write(self.content if self.path.endswith("tides.jsonl") else b"")

        def answer(self):
            type(self).asked.append((self.command, self.path))
            is_there = self.path.endswith(f"/datasets/ocean/tides/resolve/{COMMIT}/raw/tides.jsonl")
            self.send_response(200 if is_there else 404)
            if is_there:
                self.send_header("ETag", f'"{self.named}"')
                self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(self.content)) if is_there else "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    yield Handler
    server.shutdown()
    server.server_close()
    thread.join()


def publish(monkeypatch, **fields):
    file = HubFile("ocean/tides", "raw/tides.jsonl", COMMIT, **fields)
    monkeypatch.setitem(data.HUB, "longbench-v2/data.json", file)


def fetched(folder, suite="longbench-v2"):
    return main(["evaluate", "data", suite, "--out", str(folder)])


def leftovers(folder):
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "data.json"]


@pytest.mark.parametrize("sha256", [SHA256, None])
def test_a_public_file_is_fetched_once_and_checked(sha256, hub, tmp_path, monkeypatch, capsys):
    publish(monkeypatch, sha256=sha256)
    assert fetched(tmp_path) == 0
    assert (tmp_path / "longbench-v2/data.json").read_bytes() == CONTENT
    assert "ocean/tides" in capsys.readouterr().out
    assert not leftovers(tmp_path)
    asked = len(hub.asked)
    assert main(["evaluate", "data", "longbench-v2", "--out", str(tmp_path), "--json"]) == 0
    assert len(hub.asked) == asked
    assert json.loads(capsys.readouterr().out) == [{"file": "longbench-v2/data.json", "state": "there"}]


@pytest.mark.parametrize("sha256", ["0" * 64, None])
def test_a_file_of_another_hash_never_gets_its_place(sha256, hub, tmp_path, monkeypatch, capsys):
    publish(monkeypatch, sha256=sha256)
    hub.named = "1" * 64
    assert fetched(tmp_path) == 2
    assert f"has the SHA-256 {SHA256}, not {(sha256 or hub.named)}" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "longbench-v2/data.json").exists()
    assert not leftovers(tmp_path)


def test_what_cannot_be_fetched_is_told_with_its_place(hub, tmp_path, monkeypatch, capsys):
    publish(monkeypatch)
    monkeypatch.setitem(data.HUB, "longbench-v2/data.json", HubFile("ocean/gone", "raw/tides.jsonl"))
    assert fetched(tmp_path) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "of ocean/gone cannot be fetched" in told
    assert str(tmp_path / "longbench-v2/data.json") in told


def test_what_is_not_on_the_hub_is_named_with_its_source(tmp_path, capsys):
    assert fetched(tmp_path, "ruler,needle") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "by hand" in told
    assert "rajpurkar.github.io/SQuAD-explorer" in told
    assert not leftovers(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [([], "say nextlong evaluate data SUITE"), (["tides", "--out", "."], "--suite tides: there is no such suite")],
)
def test_mistakes_are_told(arguments, told, capsys):
    assert main(["evaluate", "data", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_every_file_of_the_hub_belongs_to_a_task():
    from nextlong.evaluate.task import all_tasks

    named = {name for task in all_tasks().values() for name in task.files}
    assert set(data.HUB) - named <= {"infinitebench/longbook_sum_eng.jsonl"}
    pinned = [file for file in data.HUB.values() if file.repo.startswith("openai/")]
    assert len(pinned) == 8
    assert all(len(file.sha256) == 64 and len(file.revision) == 40 for file in pinned)
