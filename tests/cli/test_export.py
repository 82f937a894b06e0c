import pytest

from nextlong.cli.main import main


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--into", ""], "--into '' names no place; give a folder or a URL, or leave it out"),
        (["--by", "tokens"], "--by tokens without --mix: there are no proportions to count; say --mix 1,2"),
        (["--mix", "1,a"], "--mix: 'a' is not a number; write the proportions as 1,2"),
        (["--to", "parket"], "did you mean 'parquet'?"),
    ],
)
def test_what_cannot_be_written_is_told_with_its_cure(shared_run, capsys, options, told):
    assert main(["export", str(shared_run), *options]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
