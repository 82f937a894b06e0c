"""Publishing to a data set of the Hugging Face Hub, with huggingface_hub itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import xxhash
from tests.support.hub_server import served_hub

from nextlong.errors import ExportError
from nextlong.export.hub import repository_at
from nextlong.export.publish import RECORD

URL = "hf://datasets/me/long"
PUBLISH = """
import json, sys
from pathlib import Path
from nextlong.errors import ExportError
from nextlong.export import publish
publish._FIRST_PAUSE_S = 0.001
publish._COMMIT_FILES = int(sys.argv[3])
files = [publish.ExportFile(Path(p), *more) for p, *more in json.loads(sys.argv[1])]
others = sys.argv[4]
try:
    print(json.dumps({"sent": publish.publish(files, sys.argv[2], others=others)}))
except ExportError as error:
    print(json.dumps({"where": error.where, "said": str(error)}))
"""
TEXTS = {"README.md": "---\n{}\n---\n# Long\n", "manifest.json": "{}"}
CONTENTS = {name: text.encode() for name, text in TEXTS.items()} | {
    f"train/part-0000{number}.parquet": bytes([number]) * 1000 for number in range(4)
}


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("hf://datasets/me/long", ("me/long", "main", "")),
        ("hf://datasets/me/long/", ("me/long", "main", "")),
        ("hf://datasets/me/long/a/b", ("me/long", "main", "a/b")),
        ("hf://datasets/me/long@dev/a", ("me/long", "dev", "a")),
        ("hf://datasets/me/long@refs/pr/3", ("me/long", "refs/pr/3", "")),
        ("hf://datasets/me/long@refs%2Fpr%2F3/a", ("me/long", "refs/pr/3", "a")),
    ],
)
def test_a_url_names_a_data_set_a_branch_and_a_folder(url, parts):
    repository = repository_at(url)
    assert (repository.name, repository.branch, repository.folder) == parts


@pytest.mark.parametrize("url", ["s3://b/c", "/data/hf", "hf://buckets/me/long/a"])
def test_other_destinations_are_no_repository(url):
    assert repository_at(url) is None


@pytest.mark.parametrize("url", ["hf://me/long", "hf://spaces/me/x", "hf://datasets/x"])
def test_repositories_of_other_kinds_are_refused(url):
    with pytest.raises(ExportError) as error:
        repository_at(url)
    assert repr(url) in error.value.where


def publishing(hub, folder, *, token="writer", url=URL, contents=CONTENTS, **more):
    """Start publishing these files in a process of its own; yields its output."""
    files = []
    for name, content in contents.items():
        path = Path(folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        digest = xxhash.xxh3_128(content).hexdigest()
        files.append((str(path), name, len(content), digest))
    arguments = [json.dumps(files), url, str(more.get("commit_files", 250))]
    environment = {key: os.environ[key] for key in os.environ if key != "HF_TOKEN"}
    environment["HF_HOME"] = str(folder / "home")
    return subprocess.Popen(
        [sys.executable, "-c", PUBLISH, *arguments, more.get("others", "refuse")],
        env=environment | hub.environment(token),
        stdout=subprocess.PIPE,
    )


def published(hub, folder, **more):
    """Return what publishing printed."""
    output, _ = publishing(hub, folder, **more).communicate()
    return json.loads(output)


def data_of(hub, name="me/long"):
    """Return the files of a data set without hidden ones."""
    files = hub.repositories[name].items()
    return {file: content for file, content in files if not file.startswith(".")}


def uploads(hub):
    return [called for called in hub.requests if called.startswith("PUT")]


@pytest.fixture
def hub():
    with served_hub("me/long", tokens={"writer": True, "reader": False}) as served:
        yield served


@pytest.mark.heavy
def test_files_appear_in_one_commit_and_are_not_sent_again(hub, tmp_path):
    assert set(published(hub, tmp_path)["sent"]) == set(CONTENTS)
    assert data_of(hub) == CONTENTS
    record = json.loads(hub.repositories["me/long"][RECORD])["files"]
    assert all(record[name]["whole"] for name in CONTENTS)
    assert len(hub.commits) == 1
    assert len(uploads(hub)) == 4
    assert published(hub, tmp_path)["sent"] == []
    assert (len(hub.commits), len(uploads(hub))) == (1, 4)


@pytest.mark.heavy
def test_an_upload_that_was_killed_resumes(hub, tmp_path):
    process = publishing(hub, tmp_path)

    def kill_after_two(stored):
        if stored == 2:
            process.kill()
        return stored < 2

    hub.on_upload = kill_after_two
    process.communicate()
    assert process.returncode < 0
    assert (hub.commits, data_of(hub)) == ([], {})
    hub.on_upload = lambda _: True
    hub.requests.clear()
    assert set(published(hub, tmp_path)["sent"]) == set(CONTENTS)
    assert len(uploads(hub)) == 2
    assert data_of(hub) == CONTENTS


@pytest.mark.heavy
def test_many_files_take_several_commits_and_the_card_comes_last(hub, tmp_path):
    hub.failures.append(("POST /api/datasets/me/long/commit/main", 503))
    published(hub, tmp_path, commit_files=2)
    assert [count for _, _, count in hub.commits] == [3, 3, 3]  # with the record
    assert data_of(hub) == CONTENTS
    # Files that no longer belong there disappear with the commit.
    fewer = {name: CONTENTS[name] for name in list(CONTENTS)[:4]}
    refused = published(hub, tmp_path, contents=fewer)
    assert refused["where"] == URL
    assert data_of(hub) == CONTENTS
    published(hub, tmp_path, contents=fewer, others="replace")
    assert data_of(hub) == fewer
    assert len(hub.commits) == 4


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ({"token": None}, ["needs an access token", "hf auth login", "HF_TOKEN"]),
        ({"token": "wrong"}, ["does not accept", "(401)", "hf auth login"]),
        ({"token": "reader"}, ["may not write", "(403)", "write permission"]),
        (
            {"url": "hf://datasets/me/none"},
            ["no data set me/none", "(404)", "hf repos create me/none --repo-type"],
        ),
        (
            {"url": f"{URL}@dev"},
            ["no branch 'dev'", "hf repos branch create me/long dev --repo-type"],
        ),
    ],
    ids=["no token", "wrong token", "reader", "no data set", "no branch"],
)
def test_what_the_hub_refuses_is_said_with_its_cure(hub, tmp_path, case, words):
    said = published(hub, tmp_path, **case)["said"]
    assert all(word in said for word in words)
    assert data_of(hub) == {}
    assert uploads(hub) == []


@pytest.mark.heavy
def test_an_export_loads_from_the_hub_with_its_splits(hub, own_few_run, tmp_path):
    environment = os.environ | hub.environment("writer") | {"HF_HOME": str(tmp_path)}
    command = ["export", str(own_few_run), "--to", "parquet,jsonl", "--into", URL]
    command += ["--set", "export.validation=0.5"]
    for _ in range(2):  # the second one has nothing to send
        subprocess.run(
            [sys.executable, "-m", "nextlong", *command],
            env=environment,
            check=True,
        )
    # Each format, and the card above both.
    assert len(hub.commits) == 3
    load = "print({k: len(v) for k, v in datasets.load_dataset('me/long').items()})"
    loaded = subprocess.run(
        [sys.executable, "-c", f"import datasets; {load}"],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "'train': " in loaded.stdout
    assert "'validation': " in loaded.stdout
