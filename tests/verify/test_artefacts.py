import itertools
import shutil
from pathlib import Path

import pytest

from damage import breaches, files, rehash
from exported_runs import record_of
from nextlong.cli.main import main
from nextlong.errors import RunError
from nextlong.verify import composed
from nextlong.verify.artefacts import Artefacts
from nextlong.verify.checks import verify


@pytest.fixture
def run(finished, tmp_path):
    """A copy to damage."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.parametrize("parts", [1, 3, 8, 40])
def test_the_parts_of_the_sequences_make_the_whole_and_parse_each_once(exported_run, monkeypatch, parts):
    run, parsed, stored = Artefacts(exported_run), [], composed.stored
    assert max(run.takes) > 1  # so that parts end within a file, too
    whole = [(sequence.number, sequence.id) for sequence in run.bare_sequences()]
    monkeypatch.setattr(composed, "stored", lambda *row: parsed.append(row[-1]) or stored(*row))
    count = sum(run.takes)
    bounds = [count * part // parts for part in range(parts + 1)]
    blocks = [block for low, high in itertools.pairwise(bounds) for block in run.blocks(range(low, high))]
    assert [(sequence.number, sequence.id) for block in blocks for sequence in block] == whole
    assert parsed == list(range(count))


def test_files_that_hold_none_of_the_sequences_asked_for_are_not_opened(run):
    artefacts, paths = Artefacts(run), files(run, "compose", ".sequences.arrow")
    assert artefacts.takes[:4] == [1, 1, 1, 1]
    for path in [paths[0], *paths[3:]]:
        path.write_bytes(b"not an Arrow file")
    assert [sequence.number for sequence in artefacts.bare_sequences(range(1, 3))] == [1, 2]


def test_a_file_that_cannot_be_read_is_a_breach_and_no_error(run):
    files(run, "embed", ".vectors.npy")[0].write_bytes(b"not an array")
    found = breaches(run)
    assert "bytes" in found["hashes"]
    assert "could not be checked" in found["vectors"]


@pytest.mark.parametrize("damaged", [b"{", b'{"version": "1.0"}', b""])
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
    with pytest.raises(RunError, match="holds no finished run"):
        list(verify(Path(f"{run}@tail")))
