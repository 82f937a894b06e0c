import pytest

from nextlong.cli.main import main


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--tasks", "1/2"], "--tasks 1/2 needs the step whose tasks are shared; add --only-step embed"),
        (["--before", "embed", "--only-step", "embed"], "--before and --only-step are two jobs"),
        (["--only-step", "embed", "--accept-changed-inputs"], "--only-step does not; say it with --before"),
        (["--only-step", "embed", "--tasks", "0/4"], "--tasks 0/4 is not a share; write K/N, such as 3/64"),
        (["--only-step", "embed", "--tasks", "5/4"], "--tasks 5/4 is not a share"),
    ],
)
def test_options_that_do_not_go_together_are_told(recipe_for, tmp_path, capsys, options, told):
    path = tmp_path / "r.yaml"
    path.write_text(recipe_for(tmp_path / "run").dump())
    assert main(["run", str(path), *options]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()
