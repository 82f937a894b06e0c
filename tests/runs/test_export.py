"""Exports of finished runs: packed, split, mixed, and never made twice."""

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
from tests.support.counted import counts_of
from tests.support.exported_runs import exported, parquet_rows
from tokenizers import Tokenizer

import nextlong
from nextlong import pipeline
from nextlong.cli.main import main
from nextlong.engine import store
from nextlong.engine.progress import Reporter
from nextlong.errors import ExportError, NextlongError, RecipeError, RunError
from nextlong.export.mixture import Mixture
from nextlong.runs import export as runs_export
from nextlong.verify.files import check_mixes
from nextlong.verify.run_files import StoredRun

T = 2048


def test_what_a_run_exported_is_not_written_again(own_run):
    exported([own_run], formats=["parquet"])
    before = {path.name for path in own_run.iterdir()}
    exported([own_run], formats=["parquet"])
    assert {path.name for path in own_run.iterdir()} == before


def test_a_run_forgets_an_export_whose_folder_was_deleted(recipe_for, own_run):
    exported([own_run], formats=["mds"])
    run = nextlong.open(own_run)
    shutil.rmtree(run.steps["mds"].folder)
    with pytest.raises(RunError):
        nextlong.open(own_run)
    nextlong.run(recipe_for(own_run))
    assert "mds" not in nextlong.open(own_run).steps


def test_chunks_of_validation_are_left_out_of_train(own_run):
    done = exported(
        [own_run],
        formats=["parquet"],
        overrides=[
            "export.validation=0.15",
            "export.shared_chunks=leave-out",
            "workers=1",
        ],
    )
    used = [
        {
            span["chunk_id"]
            for row in parquet_rows(done[name].folder)
            for span in row["spans"]
        }
        - {-1}
        for name in ("parquet", "parquet-validation")
    ]
    assert used[0]
    assert used[1]
    assert not used[0] & used[1]
    counts = counts_of(done["rows"])[0]
    assert (
        counts["train"]["sequences"]
        + counts["validation"]["sequences"]
        + counts["left_out"]
        == 12
    )
    assert counts["left_out"] > 0
    told = f"{counts['left_out']} of 12 sequences"
    for name in (".", "parquet"):
        page = (own_run / "data" / name / "README.md").read_text("utf-8")
        assert (
            f"{told} are in neither split, because they share a chunk with validation"
            in page
        )


def test_runs_are_mixed_in_the_proportions_asked(own_run, shorter_run, shared_ids):
    shorter = {
        sequence.id: sequence.input_ids.tolist()
        for sequence in nextlong.open(shorter_run).sequences()
    }
    done = exported(
        [own_run, shorter_run],
        formats=["parquet"],
        mixture=Mixture(weights=(1, 2)),
        overrides=["export.pack=4096", "workers=1"],
    )
    rows = parquet_rows(done["parquet"].folder)
    pieces = [
        (name, piece.tolist())
        for row in rows
        for name, piece in zip(
            row["sequence_id"].split(),
            np.split(np.array(row["input_ids"]), np.cumsum(row["seq_lengths"])[:-1]),
            strict=True,
        )
    ]
    long = [(name, ids) for name, ids in pieces if len(ids) == T]
    short = [(name, ids) for name, ids in pieces if len(ids) == 1024]
    assert (len(long), len(short), len(pieces)) == (12, 24, 36)
    assert all(shared_ids[name] == ids for name, ids in long)
    assert all(shorter[name] == ids for name, ids in short)
    assert all(row["length"] <= 4096 for row in rows)
    assert "mixed" not in nextlong.open(own_run).steps
    by_tokens = exported(
        [own_run, shorter_run],
        formats=["jsonl"],
        mixture=Mixture(weights=(2, 1), by="tokens"),
        overrides=["workers=1"],
    )
    assert counts_of(by_tokens["rows"])[0]["train"]["sequences"] == 24
    texts = {
        (sequence.id, len(sequence.input_ids)): sequence.text
        for run in (own_run, shorter_run)
        for sequence in nextlong.open(run).sequences()
    }
    mixed = [
        json.loads(line)
        for path in by_tokens["jsonl"].files(".jsonl")
        for line in path.read_text("utf-8").splitlines()
    ]
    assert len(mixed) == counts_of(by_tokens["rows"])[0]["train"]["rows"]
    assert all(row["text"] == texts[row["sequence_id"], row["length"]] for row in mixed)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"formats": ["parkett"]},
            r"^--to parkett: export\.formats: unknown format 'parkett'; did you mean 'parquet'\? available: arrow, ",
        ),
        (
            {"overrides": ["export.pack=many"]},
            r"^--set export\.pack=many: export\.pack must be an integer",
        ),
        (
            {"formats": ["jsonl"], "overrides": ["export.pack=4096", "export.pck=1"]},
            r"^--set export\.pck=1: unknown key 'export\.pck'; did you mean 'export\.pack'\?$",
        ),
        (
            {"formats": ["axolotl"], "overrides": ["workers=1", "export.pack=4096"]},
            r"^--to axolotl --set export\.pack=4096: export: pack is 4096 but axolotl",
        ),
        (
            {"overrides": ["export.pck=1", "export.shard_mb=0"]},
            r"^--set export\.pck=1 --set export\.shard_mb=0: export\.shard_mb must be[^\n]*\n--set .*: unknown key",
        ),
        (
            {"overrides": ["export.pack"]},
            r"^--set 'export\.pack': it is not KEY=VALUE; write --set export\.pack=",
        ),
        (
            {"formats": ["megatron"], "overrides": ["export.megatron_eod=nope"]},
            "export.megatron_eod='nope' is not in the tokenizer; use one of its tokens, such as EOS",
        ),
        (
            {"formats": ["mds"], "overrides": ["export.compression=lz4"]},
            "compression is lz4 but mds does not support it; remove it, or add a format that supports it: axolotl, parquet",
        ),
        (
            {"overrides": ["export.shared_chunks=leave-out"]},
            "shared_chunks is leave-out but validation is 0",
        ),
        ({"stale": "replace"}, "--replace: it needs --into"),
        (
            {"mixture": Mixture(by="tokens")},
            "by='tokens' sets the unit of proportions, and the mix has no proportions",
        ),
        (
            {"overrides": ["export.validation=0.95", "export.shared_chunks=leave-out"]},
            r"leaves no sequence for train of 12(: \d share a chunk with validation and are filtered out; compose.max_uses|;)",
        ),
        (
            {"overrides": ["compose.target_tokens=4"]},
            "changes more than the export; use `nextlong run RECIPE",
        ),
        (
            {"overrides": ["export.pack=1000"]},
            "export.pack=1000 is less than the length of a sequence, 2048 tokens",
        ),
        (
            {"overrides": ["export.validation=0.00001"]},
            "export.validation=1e-05 leaves no sequence for validation of 12",
        ),
        ({"mixture": Mixture(weights=(1, 2))}, "mix: it has 2 proportions for 1 runs"),
    ],
)
def test_a_mistake_is_told_with_its_cure(own_run, asked, message):
    before = sorted(own_run.rglob("*"))
    with pytest.raises(NextlongError, match=message):
        exported([own_run], **asked)
    assert sorted(own_run.rglob("*")) == before


def test_runs_of_two_tokenizers_do_not_mix(own_run, recipe_for, started, tmp_path):
    other = tmp_path / "other"
    pipeline.run(
        recipe_for(
            started(other), "tokenizer.train=600", "compose.sequences=2", "workers=1"
        )
    )
    with pytest.raises(NextlongError) as error:
        exported([own_run, other])
    assert error.value.where == f"{own_run} and {other}"


def test_every_export_has_a_card_that_says_where_it_comes_from(own_run):
    written = runs_export.export(
        [own_run], overrides=["export.validation=0.4", "workers=1"]
    )
    (counts,) = counts_of(written.done["rows"])
    for name in (".", "parquet", "jsonl"):
        text = (written.folder / name / "README.md").read_text("utf-8")
        for own in (counts["train"], counts["validation"]):
            assert (
                f"| {own['rows']} | {own['sequences']} | {own['documents']} | {own['tokens']:,} |"
                in text
            )
        matter = yaml.safe_load(text.split("---\n")[1])
        assert [own["split"] for own in matter["configs"][0]["data_files"]] == [
            "train",
            "validation",
        ]
        assert "2,048 tokens" in text
        assert "| small | `corpus` |" in text
        assert str(own_run.parent) not in text
        assert "run_dir: run\n" in text


def test_a_push_puts_every_split_and_one_card_to_the_destination(own_run, tmp_path):
    there = tmp_path / "there"
    asked = {
        "formats": ["parquet"],
        "overrides": ["export.validation=0.4", f"export.push={there}", "workers=1"],
    }
    done = exported([own_run], **asked)
    assert sorted(path.name for path in there.iterdir()) == [
        ".nextlong-push.json",
        "README.md",
        "manifest.json",
        "train",
        "validation",
    ]
    for name, split in (("parquet", "train"), ("parquet-validation", "validation")):
        files = done[name].files(".parquet")
        assert files
        assert [(there / split / path.name).read_bytes() for path in files] == [
            path.read_bytes() for path in files
        ]
    data_files = yaml.safe_load(
        (there / "README.md").read_text("utf-8").split("---\n")[1]
    )["configs"][0]["data_files"]
    assert [(own["split"], own["path"]) for own in data_files] == [
        ("train", "train/*.parquet"),
        ("validation", "validation/*.parquet"),
    ]
    (there / "train" / done["parquet"].files(".parquet")[0].name).unlink()
    exported([own_run], **asked)
    assert (there / "train" / done["parquet"].files(".parquet")[0].name).exists()


def test_a_destination_in_memory_is_refused_before_anything_is_written(own_run):
    before = {path.name for path in own_run.iterdir()}
    push = ["export.push=memory://there", "export.validation=0.4"]
    with pytest.raises(ExportError, match="export.push='memory://there'"):
        exported([own_run], formats=["arrow"], overrides=push)
    assert {path.name for path in own_run.iterdir()} == before


def test_the_destination_of_several_formats_has_a_card_that_names_one(
    own_run, tmp_path
):
    there = tmp_path / "there"
    push = [f"export.push={there}", "export.validation=0.4", "workers=1"]
    exported([own_run], formats=["jsonl", "arrow", "parquet"], overrides=push)
    matter = yaml.safe_load((there / "README.md").read_text("utf-8").split("---\n")[1])
    (configuration,) = matter["configs"]
    assert [part["path"] for part in configuration["data_files"]] == [
        "jsonl/train/*.jsonl",
        "jsonl/validation/*.jsonl",
    ]


def test_the_splits_of_an_arrow_export_are_named_as_save_to_disk_names_them(
    own_run, tmp_path
):
    push = [f"export.push={tmp_path / 'there'}", "export.validation=0.4", "workers=1"]
    exported([own_run], formats=["arrow"], overrides=push)
    for folder in (tmp_path / "there", nextlong.open(own_run).data / "arrow"):
        named = json.loads((folder / "dataset_dict.json").read_text())
        assert named == {"splits": ["train", "validation"]}


def test_tokens_that_megatron_files_add_are_counted_and_told(own_run, capsys):
    eod = "export.megatron_eod=<|endoftext|>"
    options = ["--to", "megatron", "--set", eod, "--json"]
    assert main(["export", str(own_run), *options]) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert "longer-documents" in [warned["name"] for warned in warnings]
    card = (nextlong.open(own_run).data / "megatron" / "README.md").read_text("utf-8")
    assert f"| {12 * 2049:,} |" in card


@pytest.mark.parametrize("mixed", [False, True])
def test_a_destination_of_another_export_is_refused_before_anything_is_made(
    own_run, shorter_run, tmp_path, mixed
):
    runs = [own_run, shorter_run] if mixed else [own_run]
    there = [
        f"export.push={tmp_path / 'there'}",
        "export.validation=0.4",
        "export.split_seed=7",
        "workers=1",
    ]
    exported(runs, formats=["parquet"], overrides=there)
    before = sorted(Path(own_run).iterdir())
    with pytest.raises(NextlongError, match=r"contains \d+ files of another export"):
        exported(runs, formats=["jsonl"], overrides=there)
    assert sorted(Path(own_run).iterdir()) == before


def test_a_run_whose_destination_cannot_be_written_is_refused_before_the_first_step(
    recipe_for, tmp_path
):
    (tmp_path / "file").write_text("")
    (tmp_path / "there").mkdir()
    (tmp_path / "there/mine.parquet").write_text("")
    for there, told in (
        ("file/below", "Not a directory"),
        ("there", "1 file that nextlong did not export"),
    ):
        with pytest.raises(NextlongError, match=told):
            nextlong.run(
                recipe_for(
                    tmp_path / "run",
                    f"export.push={tmp_path / there}",
                    "export.formats=jsonl",
                )
            )
    assert not (tmp_path / "run").exists()


def test_a_mix_says_of_which_runs_it_is(own_run, shorter_run):
    told = []
    reporter = Reporter()
    reporter.tell = told.append
    asked = {
        "formats": ["parquet"],
        "mixture": Mixture(weights=(2, 1)),
        "overrides": ["workers=1"],
    }
    done = exported([own_run, shorter_run], reporter=reporter, **asked)
    (note,) = told
    assert note.startswith(
        f"{own_run}, {shorter_run} were made from the same documents"
    )
    mix = json.loads((done["rows"].folder / "mix.json").read_text())
    assert (mix["proportions"], mix["by"]) == ([2, 1], "sequences")
    assert [run["run"] for run in mix["runs"]] == [
        f"{own_run}@base",
        f"{shorter_run}@base",
    ]
    assert [run["sequences"] for run in mix["runs"]] == [
        12,
        len(nextlong.open(shorter_run)),
    ]
    assert [run["taken"] for run in mix["runs"]] == [
        {"train": {"sequences": 12, "tokens": 12 * T}},
        {"train": {"sequences": 6, "tokens": 6 * 1024}},
    ]
    composed = [
        nextlong.open(run).steps["compose"].manifest["fingerprint"]
        for run in (own_run, shorter_run)
    ]
    assert [run["steps"]["compose"] for run in mix["runs"]] == composed
    keys = {
        span["doc_id"]
        for row in parquet_rows(done["parquet"].folder)
        for span in row["spans"]
    } - {-1}
    assert counts_of(done["rows"])[0]["train"]["documents"] == len(keys)


def test_what_is_written_says_how_far_its_rows_are_filled_and_warns_of_half_empty_ones(
    own_run, capsys
):
    assert main(["export", str(own_run), "--to", "jsonl"]) == 0
    told = capsys.readouterr().out
    assert "12 rows of 12 sequences; 100.0 % of 2,048 tokens per row are filled" in told
    assert "warning:" not in told
    assert (
        main(["export", str(own_run), "--to", "jsonl", "--set", "export.pack=3000"])
        == 0
    )
    told = capsys.readouterr().out
    assert (
        "12 rows of 12 sequences, 12 of them not full; 68.2 % of 3,000 tokens per row are filled"
        in told
    )
    assert "warning:" in told
    assert "export.pack=3,000 is not a multiple of the sequence length" in told
    card = (nextlong.open(own_run).data / "jsonl" / "README.md").read_text("utf-8")
    assert "| 68.2 % |" in card


def flip(path):
    """Flip a bit of a file as a disk does: neither its size nor its time changes."""
    before = path.stat()
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.write_bytes(raw)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("step", "suffix"),
    [
        ("tokens", ".ids.npy"),
        ("ingest", ".documents.arrow"),
        ("compose", ".sequences.arrow"),
    ],
)
def test_a_flipped_bit_that_changes_neither_size_nor_time_is_not_delivered(
    own_run, tmp_path, step, suffix
):
    path = nextlong.open(own_run).steps[step].files(suffix)[0]
    parquet = nextlong.open(own_run).exported("parquet")[0].parent
    flip(path)
    with pytest.raises(RunError) as caught:
        exported(
            [own_run],
            formats=["jsonl"],
            overrides=[f"export.push={tmp_path / 'there'}", "workers=1"],
        )
    assert f"{path}: it was altered" in str(caught.value)
    assert f"also delete the exports made from it: {parquet}" in str(caught.value)
    assert not (tmp_path / "there").exists()


def test_a_flipped_bit_is_not_published_by_a_run_either(own_run, recipe_for, tmp_path):
    flip(nextlong.open(own_run).steps["tokens"].files(".ids.npy")[0])
    with pytest.raises(RunError, match="was altered"):
        nextlong.run(
            recipe_for(own_run, f"export.push={tmp_path / 'there'}", "workers=1")
        )
    assert not (tmp_path / "there").exists()


@pytest.fixture
def short_documents(tmp_path):
    """A file of forty documents, none of them in the run's corpus."""
    path = tmp_path / "short ones.jsonl"
    texts = [
        f"Recipe {place}. Take {place} eggs and {place * 7} grams of flour, and stir them well.\n"
        for place in range(40)
    ]
    path.write_text("".join(json.dumps({"text": text * 3}) + "\n" for text in texts))
    return path


def test_a_mix_takes_short_documents_in_the_proportion_asked_for(
    own_run, short_documents
):
    asked = [
        "export",
        str(own_run),
        str(short_documents),
        "--mix",
        "3,1",
        "--by",
        "tokens",
        "--short-tokens",
        "256",
    ]
    assert main([*asked, "--set", "export.pack=2048", "--set", "workers=1"]) == 0
    short = nextlong.open(own_run.with_name("run-short-short-ones.jsonl"))
    long = nextlong.open(own_run)
    assert {len(sequence.input_ids) for sequence in short.sequences()} == {256}
    assert short.recipe.compose.method == "standard"
    (described,) = own_run.glob("*/mix.json")
    taken = {
        run["run"].rpartition("/")[2]: run["taken"]["train"]
        for run in json.loads(described.read_text())["runs"]
    }
    long_taken, short_taken = (counts["tokens"] for counts in taken.values())
    assert short_taken / (long_taken + short_taken) == pytest.approx(0.25, abs=0.05)
    tokenizer = Tokenizer.from_file(
        str(long.steps["tokenizer"].file(".tokenizer.json"))
    )
    assert "grams of flour" in tokenizer.decode(
        next(iter(short.sequences())).input_ids.tolist()
    )


def test_rows_are_no_longer_than_the_runs_unless_asked(own_run, short_documents):
    written = runs_export.export(
        [own_run, short_documents], overrides=["export.pack=2048", "workers=1"]
    )
    assert written.runs[1].recipe.compose.target_tokens == 2048


def test_tokens_of_short_rows_need_short_documents(own_run):
    with pytest.raises(RecipeError) as error:
        runs_export.export([own_run], short_tokens=256)
    assert error.value.where == "--short-tokens"


@pytest.fixture
def labelled_run(recipe_for, tmp_path):
    """A run of two sources, whose documents name a language."""
    sources = []
    for source, language, documents in (("web", "en", 90), ("books", "de", 45)):
        path = tmp_path / f"{source}.jsonl"
        with path.open("w") as file:
            for number in range(documents):
                words = [f"{source}{(number * 7 + word) % 40}" for word in range(60)]
                text = " ".join(words) + "\n"
                line = {"id": f"{source}-{number}", "text": text * 3, "lang": language}
                file.write(json.dumps(line) + "\n")
        metadata = {"path": str(path), "name": source, "metadata": ["lang"]}
        sources.append(metadata)
    run_dir = tmp_path / "labelled"
    pipeline.run(
        recipe_for(
            run_dir,
            f"ingest.sources={json.dumps(sources)}",
            "compose.method=standard",
            "compose.sequences=all",
            "compose.target_tokens=512",
        )
    )
    return run_dir


@pytest.mark.parametrize(
    ("components", "names"), [("sources", ("books", "web")), ("lang", ("de", "en"))]
)
def test_components_of_one_run_are_mixed_by_temperature(
    labelled_run, components, names
):
    of_all = Counter(
        span.spans[0].source_id.partition("-")[0]
        for span in nextlong.open(labelled_run).sequences()
    )
    asked = ["export", str(labelled_run), "--to", "parquet", "--temperature", "0"]
    order = ["--components", components, "--order", "curriculum"]
    assert main([*asked, *order, "--set", "workers=1"]) == 0
    (described,) = labelled_run.glob("*/mix.json")
    mix = json.loads(described.read_text())
    fewest = min(of_all.values())
    assert [part[0] for part in mix["components"]["train"]] == list(names)
    assert [part[1] for part in mix["components"]["train"]] == [fewest, fewest]
    (outcome,) = check_mixes(StoredRun(labelled_run))
    assert outcome.result == "pass"
    # The rows of the run itself stay what they were.
    (own_file,) = nextlong.open(labelled_run).exported("parquet")
    assert len(parquet_rows(own_file.parent)) == sum(of_all.values())


def test_a_column_that_no_document_has(labelled_run):
    with pytest.raises(RecipeError) as error:
        exported(
            [labelled_run], mixture=Mixture(components="language", temperature=0.3)
        )
    assert (error.value.where, error.value.value) == ("--components", "language")


def test_lengths_of_two_runs_come_in_the_order_of_a_curriculum(own_run, shorter_run):
    asked = ["export", str(own_run), str(shorter_run), "--to", "parquet"]
    mix = ["--mix", "balanced-lengths", "--order", "curriculum"]
    assert main([*asked, *mix, "--set", "workers=1"]) == 0
    (described,) = own_run.glob("*/mix.json")
    fingerprint = described.parent.name.rpartition("-")[2]
    (folder,) = [
        path.parent
        for path in own_run.glob("*-parquet-*/manifest.json")
        if json.loads(path.read_text())["inputs"]["rows"] == fingerprint
    ]
    lengths = [row["length"] for row in parquet_rows(folder)]
    assert lengths == sorted(lengths)
    assert 1024 * lengths.count(1024) == 2048 * lengths.count(2048)
    (data,) = (own_run / "data").glob("mix-*/README.md")
    assert "| 1k-2k |" in data.read_text("utf-8")
    (outcome,) = check_mixes(StoredRun(own_run))
    assert outcome.result == "pass"
    # In another order, `verify` sees it even if the hashes are made to fit.
    (path,) = described.parent.glob("*.train.index.npy")
    np.save(path, np.load(path)[::-1])
    manifest = described.parent / "manifest.json"
    record = json.loads(manifest.read_text())
    entry = store.hash_file(path)
    for part in record["parts"]:
        if path.name in part["files"]:
            part["files"][path.name]["xxh3"] = entry
    manifest.write_text(json.dumps(record))
    (outcome,) = check_mixes(StoredRun(own_run))
    assert outcome.breaches == 1
    assert "order of length buckets" in outcome.examples[0]
