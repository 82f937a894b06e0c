"""A real server, `transformers serve`, is sent the prompts that the transformers engine reads, and gives the same answers."""

import json
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from nextlong.cli.main import main

pytestmark = pytest.mark.heavy
SERVE = "from transformers.cli.transformers import main; main()"


@pytest.fixture
def url(tiny_model):
    """The address of a server of the tiny model; skipped without the packages of transformers[serving]."""
    for package in ("fastapi", "openai", "uvicorn"):
        pytest.importorskip(package)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = [
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--device",
        "cpu",
        "--dtype",
        "float32",
    ]
    server = subprocess.Popen(
        [sys.executable, "-c", SERVE, "serve", str(tiny_model), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        while server.poll() is None:
            try:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{port}/health", timeout=5
                ):
                    break
            except OSError:
                time.sleep(0.2)
        assert server.poll() is None, server.stderr.read()
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait()
        server.stderr.close()


def test_prompts_and_answers_are_those_of_the_transformers_engine(
    tiny_model, url, tmp_path
):
    options = [
        "--tasks",
        "niah_single_1",
        "--lengths",
        "1k",
        "--samples",
        "2",
        "--dtype",
        "float32",
    ]
    server = ["--url", url, "--tokenizer", str(tiny_model), "--context", "4096"]
    found = []
    for name, more in (("local", []), ("server", server)):
        assert (
            main(
                [
                    "evaluate",
                    "run",
                    str(tiny_model),
                    *options,
                    *more,
                    "--out",
                    str(tmp_path / name),
                ]
            )
            == 0
        )
        found.append(
            json.loads((tmp_path / name / "niah_single_1/1024.json").read_text())
        )
    local, served = found
    assert served["engine"].startswith("server http")
    assert any(sample["answer"].strip() for sample in local["samples"])
    for key in ("prompt_sha256", "answer", "references", "scores"):
        assert [one[key] for one in served["samples"]] == [
            one[key] for one in local["samples"]
        ]
