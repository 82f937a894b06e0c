"""Files by their hashes, in a run and where an export was put: sound as delivered, found out when altered, by record and run."""

import json
import shutil
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from fsspec.implementations.memory import MemoryFileSystem
from tests.support.counted import counts_of
from tests.support.damage import breaches as run_breaches
from tests.support.damage import files
from tests.support.exported_runs import EOD, FORMATS, SEQUENCES, change_json, exported

from nextlong import pipeline
from nextlong.cli.main import main
from nextlong.errors import RunError
from nextlong.runs import export as runs_export
from nextlong.verify import files as checks
from nextlong.verify.files import check_mixes
from nextlong.verify.run_files import StoredRun


def test_a_changed_byte_and_a_missing_file_are_found_by_their_hashes(run):
    path = files(run, "draft", ".drafts.arrow")[0]
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    assert set(run_breaches(run)) == {"hashes"}
    path.unlink()
    assert "is missing" in run_breaches(run)["hashes"]


def test_a_step_that_was_made_from_others_is_found(run):
    path = files(run, "compose", "manifest.json")[0]
    manifest = json.loads(path.read_text())
    manifest["inputs"]["draft"] = "0" * 12
    path.write_text(json.dumps(manifest))
    assert "draft 000000000000" in run_breaches(run)["manifests"]


def test_a_mix_is_verified_by_its_hashes(own_run, shorter_run):
    assert check_mixes(StoredRun(own_run)) == []
    done = exported(
        [own_run, shorter_run], formats=["parquet"], overrides=["workers=1"]
    )
    (outcome,) = check_mixes(StoredRun(own_run))
    assert (outcome.result, outcome.checked) == (
        "pass",
        3,
    )  # index and offsets of the rows, one file of Parquet
    assert "only hashes" in outcome.note
    assert outcome.note.endswith(f"each run: {own_run}@base, {shorter_run}@base")
    path = done["parquet"].files(".parquet")[0]
    path.write_bytes(path.read_bytes() + b"!")
    (outcome,) = check_mixes(StoredRun(own_run))
    assert outcome.breaches == 1
    assert f"{path.parent.name}/{path.name} has" in outcome.examples[0]
    (done["rows"].folder / "manifest.json").write_text("{}")
    (outcome,) = check_mixes(StoredRun(own_run))
    assert outcome.breaches == 2
    name = f"{done['rows'].folder.name}/manifest.json"
    assert outcome.examples[0].startswith(name)


@pytest.fixture(scope="module")
def delivered(exported_run, tmp_path_factory):
    """The run, and every format delivered from it, divided and packed where it may be; read-only."""
    folder = tmp_path_factory.mktemp("delivered")
    run = Path(shutil.copytree(exported_run, folder / "run"))
    asked = ["workers=1", "export.validation=0.3", f"export.megatron_eod='{EOD}'"]
    runs_export.export(
        [run], formats=FORMATS, overrides=[*asked, f"export.push={folder / 'there'}"]
    )
    return run, folder / "there"


@pytest.fixture
def there(delivered, tmp_path):
    """A copy of what was delivered to damage."""
    return Path(shutil.copytree(delivered[1], tmp_path / "there"))


def verify_delivered(folder, run=None):
    return checks.verify_delivered(fsspec.filesystem("file"), str(folder), run)


def breaches(folder, run=None):
    return {
        outcome.check: outcome.examples
        for outcome in verify_delivered(folder, run)
        if outcome.breaches
    }


def fingerprint(record):
    """Return the hash of a record without its own, whatever its layout as JSON."""
    plain = {key: value for key, value in record.items() if key != "xxh3"}
    return xxhash.xxh3_128_hexdigest(
        json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
    )


def rehash(folder, name):
    """Write a file's size and hash into the record, and the record's own, so that only what it says gives damage away."""
    raw = (folder / name).read_bytes()
    record = json.loads((folder / "manifest.json").read_text("utf-8"))
    record["files"][name] = {"bytes": len(raw), "xxh3": xxhash.xxh3_128_hexdigest(raw)}
    record["xxh3"] = fingerprint(record)
    (folder / "manifest.json").write_text(json.dumps(record), "utf-8")


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_passes_as_delivered_alone_and_against_its_run(delivered, name):
    run, there = delivered
    for made_by in (None, run):
        outcomes = {
            outcome.check: outcome
            for outcome in verify_delivered(there / name, made_by)
        }
        assert {
            check: outcome.examples
            for check, outcome in outcomes.items()
            if outcome.result != "pass"
        } == {}
        assert list(outcomes) == [
            "record",
            "hashes",
            f"{name} train rows",
            f"{name} validation rows",
        ]
        assert (
            sum(
                outcomes[f"{name} {split} rows"].checked
                for split in ("train", "validation")
            )
            == SEQUENCES
        )


def test_the_record_tells_what_it_is_of(delivered):
    run, there = delivered
    record = json.loads((there / "parquet" / "manifest.json").read_text("utf-8"))
    counts = counts_of(runs_export.Run(run).steps["rows"])[0]
    assert {split: own["rows"] for split, own in record["splits"].items()} == {
        split: counts[split]["rows"] for split in ("train", "validation")
    }
    (told,) = record["runs"]
    assert (told["name"], told["sequences"]) == ("run", SEQUENCES)
    assert (
        told["steps"]["compose"]
        == runs_export.Run(run).steps["compose"].manifest["fingerprint"]
    )
    assert record["settings"]["validation"] == 0.3
    assert str(there.parent) not in json.dumps(record)


@pytest.mark.parametrize("name", FORMATS)
def test_every_truncated_and_every_flipped_file_is_found(there, name):
    for path in sorted((there / name).rglob("*")):
        if path.name.startswith(".") or not path.is_file():
            continue
        raw = path.read_bytes()
        middle = len(raw) // 2
        flipped = raw[:middle] + bytes([raw[middle] ^ 1]) + raw[middle + 1 :]
        for damaged in (raw[:-1], flipped, b""):
            path.write_bytes(damaged)
            assert breaches(there / name), path
        path.unlink()
        if path.name != "manifest.json":
            assert any(
                "is missing" in told for told in breaches(there / name)["hashes"]
            ), path
        path.write_bytes(raw)
    assert breaches(there / name) == {}


def test_a_file_too_many_is_found_but_a_licence_and_hidden_ones_may_lie_there(there):
    folder = there / "parquet"
    (folder / "LICENSE").write_text("all rights")
    (folder / ".gitattributes").write_text("*")
    assert breaches(folder) == {}
    shutil.copy(
        folder / "train" / "part-00000.parquet", folder / "train" / "part-00001.parquet"
    )
    assert breaches(folder)["hashes"] == [
        "train/part-00001.parquet is not in the record, but readers may load it as part of the data set"
    ]


def test_what_hashes_cannot_tell_the_counts_and_the_run_do(delivered, there):
    folder, name = there / "parquet", "train/part-00000.parquet"
    table = pq.read_table(folder / name)
    pq.write_table(table.slice(1), folder / name)
    rehash(folder, name)
    (found,) = breaches(folder).values()
    assert found[0].startswith(f"{len(table) - 1} rows, ")
    rows = table.to_pylist()
    rows[2]["input_ids"][7] += 1
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), folder / name)
    rehash(folder, name)
    assert breaches(folder) == {}
    (found,) = breaches(folder, delivered[0]).values()
    assert "row 2: input_ids[7]" in found[0]


def test_an_altered_record_is_found(there):
    path = there / "jsonl" / "manifest.json"
    change_json(path, lambda record: record["splits"]["train"].update(rows=99))
    assert "been altered" in breaches(there / "jsonl")["record"][0]
    path.write_text("{}")
    assert "the record" in breaches(there / "jsonl")["record"][0]


def test_a_mix_is_not_to_be_compared_with_one_run(there):
    path = there / "parquet" / "manifest.json"
    record = json.loads(path.read_text("utf-8"))
    record["runs"] *= 2
    path.write_text(json.dumps(record | {"xxh3": fingerprint(record)}), "utf-8")
    told = [outcome.note for outcome in verify_delivered(there / "parquet")]
    assert [note for note in told if note] == [
        "counted only; a mix of several runs, so verify each run separately"
    ] * 2


def test_an_altered_id_of_megatron_is_found_by_the_run(delivered, there):
    folder, name = there / "megatron", "train/part-00000.bin"
    ids = np.fromfile(folder / name, np.uint16)
    ids[5] += 1
    ids.tofile(folder / name)
    rehash(folder, name)
    assert (
        "row 0: input_ids[5]"
        in breaches(folder, delivered[0])["megatron train rows"][0]
    )


def test_another_run_is_refused(there, recipe_for, started, tmp_path):
    pipeline.run(
        recipe_for(
            started(tmp_path / "other"),
            "compose.sequences=2",
            "compose.target_tokens=512",
            "workers=1",
        )
    )
    other = tmp_path / "other"
    with pytest.raises(RunError) as error:
        list(verify_delivered(there / "mds", other))
    assert error.value.where == f"--run {other}"


def test_where_the_run_has_pruned_the_rows_files_and_counts_are_checked_and_it_says_so(
    delivered, there, tmp_path
):
    run = Path(shutil.copytree(delivered[0], tmp_path / "run"))
    rows = json.loads((there / "jsonl/manifest.json").read_text())["rows"]
    shutil.rmtree(next(run.glob(f"*-rows-{rows}")))
    outcomes = {
        outcome.check: outcome for outcome in verify_delivered(there / "jsonl", run)
    }
    assert {outcome.result for outcome in outcomes.values()} == {"pass"}
    assert "is unknown" in outcomes["jsonl train rows"].note
    assert (
        sum(
            outcomes[f"jsonl {split} rows"].checked for split in ("train", "validation")
        )
        == SEQUENCES
    )
    lines = (
        (there / "jsonl/train").glob("*.jsonl")
        if (there / "jsonl/train").is_dir()
        else (there / "jsonl").glob("*.jsonl")
    )
    path = next(iter(sorted(lines)))
    path.write_text(path.read_text().partition("\n")[2])
    rehash(there / "jsonl", str(path.relative_to(there / "jsonl")))
    assert "are recorded" in breaches(there / "jsonl", run)["jsonl train rows"][0]


def test_a_folder_of_several_formats_is_verified_whole(delivered, capsys):
    assert main(["verify", str(delivered[1]), "--run", str(delivered[0])]) == 0
    told = capsys.readouterr().out
    assert all(f"{name}: {name} train rows" in told for name in FORMATS)


def test_a_run_that_has_not_finished_is_no_delivered_export(
    delivered, tmp_path, capsys
):
    run = Path(shutil.copytree(delivered[0], tmp_path / "run"))
    (run / "run.json").unlink()
    shutil.rmtree(run / "variants")
    assert main(["verify", str(run)]) == 2
    assert "finished run" in " ".join(capsys.readouterr().err.split())


def test_the_command_verifies_a_folder_and_a_run(delivered, there, capsys):
    assert main(["verify", str(there / "mds"), "--run", str(delivered[0])]) == 0
    told = capsys.readouterr().out
    assert "mds train rows" in told
    assert "no breach" in told
    (there / "mds" / "README.md").write_text("# other words\n")
    assert main(["verify", str(there / "mds"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["passed"]
    assert main(["verify", str(delivered[0]), "--run", str(delivered[0])]) == 2
    assert "delivered export" in " ".join(capsys.readouterr().err.split())
    (step,) = delivered[0].glob("*-mds-validation-*")
    assert main(["verify", str(step)]) == 2
    assert "nextlong verify" in " ".join(capsys.readouterr().err.split())


@pytest.fixture(scope="module")
def remote_run(exported_run, tmp_path_factory):
    return Path(
        shutil.copytree(exported_run, tmp_path_factory.mktemp("remote") / "run")
    )


class BucketFileSystem(MemoryFileSystem):
    """A store that is no local folder; `memory://` itself is refused as a destination."""

    protocol = "bucket"
    store, pseudo_dirs = {}, [""]


@pytest.fixture
def bucket(remote_run, tmp_path):
    """Two formats delivered to a store that is no local folder, and its file system."""
    fsspec.register_implementation("bucket", BucketFileSystem, clobber=True)
    url = f"bucket://{tmp_path.name}"
    overrides = ["workers=1", "export.validation=0.3", f"export.push={url}"]
    runs_export.export([remote_run], formats=["parquet", "jsonl"], overrides=overrides)
    fs = fsspec.filesystem("bucket")
    yield url, fs, fs._strip_protocol(url)
    fs.rm(fs._strip_protocol(url), recursive=True)


def verified(capsys, *arguments):
    capsys.readouterr()
    code = main(["verify", *map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    plain = json.loads(out) if out else {}
    return code, {one["check"]: one for one in plain.get("checks", plain)}, err


def test_as_delivered_it_passes_for_one_format_and_for_all(bucket, remote_run, capsys):
    url, _, _ = bucket
    code, checks, _ = verified(capsys, url)
    assert code == 0
    assert (
        checks["jsonl: hashes"]["result"]
        == checks["parquet: hashes"]["result"]
        == "pass"
    )
    assert verified(capsys, f"{url}/parquet", "--run", remote_run)[0] == 0


def test_a_byte_that_differs_there_is_found(bucket, capsys):
    url, fs, root = bucket
    (name,) = [
        path
        for path in fs.find(f"{root}/parquet")
        if path.endswith(".parquet") and "/train/" in path
    ][:1]
    raw = bytearray(fs.cat_file(name))
    raw[len(raw) // 2] ^= 1
    fs.pipe_file(name, bytes(raw))
    code, checks, _ = verified(capsys, f"{url}/parquet")
    assert code == 1
    assert "the hash" in json.dumps(checks["hashes"])


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
    assert "were recorded" in told
    assert "train/more.jsonl is" in told


def test_a_record_that_was_altered_is_found(bucket, capsys):
    url, fs, root = bucket
    record = json.loads(fs.cat_file(f"{root}/jsonl/manifest.json"))
    record["splits"]["train"]["rows"] += 1
    fs.pipe_file(f"{root}/jsonl/manifest.json", json.dumps(record).encode())
    code, checks, _ = verified(capsys, f"{url}/jsonl")
    assert code == 1
    assert "been altered" in json.dumps(checks["record"])


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://nothing/there", "has no manifest.json of a delivered export"),
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
    assert "exported variant" in " ".join(err.split())
