"""Delivered exports behind a URL: the bytes there against the record that came with them."""

import json
import shutil
from pathlib import Path

import fsspec
import pytest

from nextlong.cli.main import main
from nextlong.runs import export as runs_export


@pytest.fixture(scope="module")
def run(exported_run, tmp_path_factory):
    return Path(shutil.copytree(exported_run, tmp_path_factory.mktemp("remote") / "run"))


@pytest.fixture
def bucket(run, tmp_path):
    """Two formats delivered to a store that is no local folder, and its file system."""
    url = f"memory://{tmp_path.name}"
    overrides = ["workers=1", "export.validation=0.3", f"export.push={url}"]
    runs_export.export([run], formats=["parquet", "jsonl"], overrides=overrides)
    fs = fsspec.filesystem("memory")
    yield url, fs, fs._strip_protocol(url)
    fs.rm(fs._strip_protocol(url), recursive=True)


def verified(capsys, *arguments):
    capsys.readouterr()
    code = main(["verify", *map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    plain = json.loads(out) if out else {}
    return code, {one["check"]: one for one in plain.get("checks", plain)}, err


def test_as_delivered_it_passes_for_one_format_and_for_all(bucket, run, capsys):
    url, _, _ = bucket
    code, checks, _ = verified(capsys, url)
    assert code == 0
    assert checks["jsonl: hashes"]["result"] == checks["parquet: hashes"]["result"] == "pass"
    assert verified(capsys, f"{url}/parquet", "--run", run)[0] == 0


def test_a_byte_that_differs_there_is_found(bucket, capsys):
    url, fs, root = bucket
    (name,) = [path for path in fs.find(f"{root}/parquet") if path.endswith(".parquet") and "/train/" in path][:1]
    raw = bytearray(fs.cat_file(name))
    raw[len(raw) // 2] ^= 1
    fs.pipe_file(name, bytes(raw))
    code, checks, _ = verified(capsys, f"{url}/parquet")
    assert code == 1
    assert "has the hash" in json.dumps(checks["hashes"])


def test_missing_cut_and_strange_files_are_found(bucket, capsys):
    url, fs, root = bucket
    names = sorted(path for path in fs.find(f"{root}/jsonl") if path.endswith(".jsonl"))
    fs.rm(names[0])
    fs.pipe_file(names[-1], fs.cat_file(names[-1])[:-3])
    fs.pipe_file(f"{root}/jsonl/train/more.jsonl", b"{}")
    code, checks, _ = verified(capsys, f"{url}/jsonl")
    told = json.dumps(checks["hashes"])
    assert code == 1
    assert "is missing" in told
    assert "bytes, its record says" in told
    assert "train/more.jsonl lies among the files" in told


def test_a_record_that_was_altered_is_found(bucket, capsys):
    url, fs, root = bucket
    record = json.loads(fs.cat_file(f"{root}/jsonl/manifest.json"))
    record["splits"]["train"]["rows"] += 1
    fs.pipe_file(f"{root}/jsonl/manifest.json", json.dumps(record).encode())
    code, checks, _ = verified(capsys, f"{url}/jsonl")
    assert code == 1
    assert "has been altered" in json.dumps(checks["record"])


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://nothing/there", "holds no manifest.json of a delivered export"),
        ("nosuch://bucket/x", "use a local path or a URL that fsspec knows"),
    ],
)
def test_a_url_with_no_export_is_told(url, message, capsys):
    code, checks, err = verified(capsys, url)
    assert (code, checks) == (2, {})
    assert message in " ".join(err.split())


def test_another_run_than_the_one_that_it_is_of_is_refused(bucket, shared_run, capsys):
    code, _, err = verified(capsys, f"{bucket[0]}/jsonl", "--run", shared_run)
    assert code == 2
    assert "name that run, or the variant of it that was exported" in " ".join(err.split())
