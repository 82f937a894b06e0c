import pytest

from nextlong.cli.main import main


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--sample", "-1"], "--sample -1 is neither a whole number from 0 on nor all"),
        (["--sample", "2.5"], "--sample 2.5 is neither a whole number from 0 on nor all"),
        (["--sample", "some"], "--sample some is neither a whole number from 0 on nor all"),
        (["--workers", "0"], "--workers 0 is not a number of processes; give 1 or more"),
        (["--run", "other"], "is not a folder that an export was put into, so --run other has no use here"),
    ],
)
def test_an_option_that_has_no_sense_is_told(shared_run, capsys, options, told):
    assert main(["verify", str(shared_run), *options]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
