"""Names of chunks and documents in examples; `damage.outcomes` asserts that no check of a damaged run says an internal id."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.support.damage import breaches, files, rehash
from tests.support.damage import chunk_name as told
from tests.support.damage import document_name as told_document
from tests.support.exported_runs import record_of
from tests.support.larger_cases import thorough
from tests.support.open_files import is_released

from nextlong.cli.main import main
from nextlong.errors import RunError
from nextlong.schemas import META, NEGATIVE, NO_CHUNK, SEPARATOR, SHARD_BITS
from nextlong.verify.checks import verify
from nextlong.verify.outcome import CheckOutcome, chunk_name, document_name
from nextlong.verify.run_files import ResolvedSequence, StoredRun, _open_step


@pytest.mark.parametrize("parts", [1, 3, 8, 40])
def test_the_parts_of_the_sequences_make_the_whole_and_parse_each_once(
    exported_run, monkeypatch, parts
):
    run, parsed, stored = StoredRun(exported_run), [], StoredRun._stored
    assert max(run.sequences_per_part) > 1  # so that parts end within a file, too
    whole = [(sequence.number, sequence.id) for sequence in run.bare_sequences()]
    monkeypatch.setattr(
        StoredRun, "_stored", lambda *where: parsed.append(where[1:]) or stored(*where)
    )
    count = run.sequence_count
    bounds = [count * part // parts for part in range(parts + 1)]
    blocks = [
        block
        for low, high in itertools.pairwise(bounds)
        for block in run.blocks(range(low, high))
    ]
    assert [
        (sequence.number, sequence.id) for block in blocks for sequence in block
    ] == whole
    assert parsed == [
        (part, place)
        for part, take in enumerate(run.sequences_per_part)
        for place in range(take)
    ]


def test_files_that_hold_none_of_the_sequences_asked_for_are_not_opened(run):
    artefacts, paths = StoredRun(run), files(run, "compose", ".sequences.arrow")
    assert artefacts.sequences_per_part[:4] == [1, 1, 1, 1]
    for path in [paths[0], *paths[3:]]:
        path.write_bytes(b"not an Arrow file")
    assert [
        sequence.number for block in artefacts.blocks(range(1, 3)) for sequence in block
    ] == [1, 2]


def test_a_file_that_cannot_be_read_is_a_breach_and_no_error(run):
    files(run, "embed", ".vectors.npy")[0].write_bytes(b"not an array")
    found = breaches(run)
    assert "bytes" in found["hashes"]
    assert "be checked" in found["vectors"]


@pytest.mark.parametrize("damaged", [b'{"version": "1.0"}', *thorough(b"{", b"")])
def test_a_damaged_tokenizer_is_a_breach_and_no_error(run, capsys, damaged):
    (path,) = files(run, "tokenizer", ".tokenizer.json")
    path.write_bytes(damaged)
    rehash(path)
    assert "is not a tokenizer.json" in breaches(run)["tokens"]
    assert main(["verify", str(run), "--sample", "5"]) == 1
    assert "is not a tokenizer.json" in capsys.readouterr().out


def test_a_variant_is_verified_by_its_name(run):
    shutil.move(record_of(run), run / "variants" / "top.json")
    (run / "run.json").unlink()
    assert all(outcome.result == "pass" for outcome in verify(Path(f"{run}@top")))
    with pytest.raises(RunError) as error:
        list(verify(Path(f"{run}@tail")))
    assert error.value.where == str(run)


def composed(spans):
    """Spans are (chunk, role, tokens placed, tokens of the whole chunk)."""
    chunk, role, placed, tokens = (
        np.array(column) for column in zip(*spans, strict=True)
    )
    end, zeros = np.cumsum(placed), np.zeros(len(spans), np.int64)
    return ResolvedSequence(
        number=4, id="s", key=7, method="nextlong", layout="extended",
        chunk=chunk, role=role, group=zeros, start=end - placed, end=end, score=zeros,
        doc=zeros, doc_first=zeros, doc_stop=zeros, char_start=zeros, char_end=zeros, open_ended=zeros > 0, tokens=tokens,
    )  # fmt: skip


def test_a_chunk_with_fewer_tokens_than_it_has_is_truncated_and_nothing_else_is():
    sequence = composed(
        [(5, META, 4, 4), (NO_CHUNK, SEPARATOR, 1, NO_CHUNK), (9, NEGATIVE, 2, 3)]
    )
    assert sequence.is_chunk.tolist() == [True, False, True]
    assert sequence.is_truncated.tolist() == [False, False, True]


def test_a_span_is_named_by_its_place_role_and_tokens_whatever_its_role():
    sequence = composed(
        [(5, META, 4, 4), (NO_CHUNK, SEPARATOR, 1, NO_CHUNK), (6, 99, 2, 2)]
    )
    assert [sequence.where(span) for span in range(3)] == [
        "sequence 4 span 0 (meta ⟦chunk 5⟧, tokens 0–4)",
        "sequence 4 span 1 (separator, tokens 4–5)",
        "sequence 4 span 2 (role 99 ⟦chunk 6⟧, tokens 5–7)",
    ]


def said(run, example):
    outcome = CheckOutcome("check", "things")
    outcome.breach(example)
    (named,) = StoredRun(run).name_marks([outcome])
    (example,) = named.examples
    return example


def test_a_mark_becomes_the_name_whatever_its_shard(finished):
    shard = len(files(finished, "chunk", ".chunks.arrow")) - 1
    assert shard > 0
    for chunk in (3, (shard << SHARD_BITS) + 4):
        assert (
            said(finished, f"{chunk_name(chunk)} is long")
            == f"{told(finished, chunk)} is long"
        )
    wanted = told_document(finished, 2, shard=shard)
    assert (
        said(finished, f"document {document_name((shard << SHARD_BITS) + 2)}")
        == f"document {wanted}"
    )


def test_an_id_that_the_run_does_not_have_is_told_by_its_place(finished):
    assert said(finished, chunk_name(1 << 40)) == "unknown chunk (shard 256, row 0)"
    assert (
        said(finished, chunk_name((1 << 32) - 1))
        == "unknown chunk (shard 0, row 4,294,967,295)"
    )
    assert (
        said(finished, document_name(10**6))
        == "unknown document (shard 0, row 1,000,000)"
    )
    assert said(finished, chunk_name(NO_CHUNK)) == "no chunk"


def test_files_that_cannot_be_read_cost_the_name_only(run):
    files(run, "ingest", ".documents.arrow")[0].write_bytes(b"torn")
    assert said(run, chunk_name(3)) == "unknown chunk (shard 0, row 3)"


ENTRY = {"bytes": 1, "xxh3": "0"}


def manifest(*names):
    parts = [{"files": dict.fromkeys(names, ENTRY)}]
    return {"fingerprint": "f", "inputs": {}, "parts": parts}


def test_files_stand_in_the_order_of_their_numbers(tmp_path):
    names = ["part-2.10.npy", "part-10.1.npy", "part-2.9.npy", "part-1.json"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest(*names)))
    step = _open_step("a", tmp_path)
    assert step.damage == ""
    assert [path.name for path in step.files(".npy")] == [
        "part-2.9.npy",
        "part-2.10.npy",
        "part-10.1.npy",
    ]


@pytest.mark.parametrize(
    ("text", "damage"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ("{}", "is not the manifest of a step"),
        (
            '{"fingerprint": "f", "inputs": {}, "parts": [{}]}',
            "is not the manifest of a step",
        ),
    ],
)
def test_a_damaged_manifest_is_told_and_no_error(tmp_path, text, damage):
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    step = _open_step("a", tmp_path)
    assert step.damage.startswith(damage)
    assert step.files("") == []


def test_a_run_is_released_without_the_garbage_collector(exported_run):
    def make():
        run = StoredRun(exported_run)
        assert len(run.chunks(0)["start"])
        assert list(run.sequences())
        return run

    assert is_released(make)
