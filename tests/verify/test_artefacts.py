import shutil
from pathlib import Path

import pytest

from damage import breaches, files, rehash
from exported_runs import record_of
from nextlong.cli.main import main
from nextlong.errors import RunError
from nextlong.verify.checks import verify


@pytest.fixture
def run(finished, tmp_path):
    """A copy to damage."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


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


def test_a_state_is_verified_by_its_name(run):
    shutil.move(record_of(run), run / "states" / "top.json")
    (run / "run.json").unlink()
    assert all(outcome.result == "pass" for outcome in verify(Path(f"{run}@top")))
    with pytest.raises(RunError, match="holds no finished run"):
        list(verify(Path(f"{run}@tail")))
