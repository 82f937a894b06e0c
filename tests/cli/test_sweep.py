from nextlong.cli.main import main


def test_a_file_that_cannot_be_written_is_told_before_hours_of_work(recipe_for, tmp_path, capsys):
    path = tmp_path / "r.yaml"
    path.write_text(recipe_for(tmp_path / "run").dump())
    table = tmp_path / "none" / "t.csv"
    assert main(["sweep", str(path), "--over", "chunk.max_chars=512,1024", "--csv", str(table)]) == 2
    assert f"{table} cannot be written: {table.parent} is not a folder" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


def test_an_axis_that_is_none_is_told(recipe_for, tmp_path, capsys):
    path = tmp_path / "r.yaml"
    path.write_text(recipe_for(tmp_path / "run").dump())
    assert main(["sweep", str(path), "--over", "chunk.max_chars"]) == 2
    assert "chunk.max_chars" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
