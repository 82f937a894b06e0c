"""Options of run, plan, sweep and export: what does not go together, and how a run names its variant."""

from types import SimpleNamespace

import pytest

from nextlong.cli.main import main
from nextlong.cli.run import _variant
from nextlong.recipe import Recipe

LONG = [
    "compose.target_tokens=262144",
    "compose.position=tail",
    "compose.min_meta_chunks=3",
]


@pytest.mark.parametrize(
    ("overrides", "is_told"),
    [(LONG, True), ([*LONG, "name=mine"], False), (["compose.seed=1"], False)],
)
def test_a_long_name_that_was_made_can_be_given_otherwise(
    recipe_for, tmp_path, overrides, is_told
):
    (tmp_path / "r.yaml").write_text(recipe_for(tmp_path / "run").dump())
    recipe = Recipe.load(tmp_path / "r.yaml", overrides=overrides)
    name = recipe.name or ",".join(overrides)
    variant = SimpleNamespace(name=name, named=f"{tmp_path}/run@{name}")
    told = _variant(
        recipe, SimpleNamespace(variant=variant, path=tmp_path / "run"), None
    )
    assert told.startswith(
        f"{name}, opened as {tmp_path}/run@{name}, because of --set; "
    )
    assert ("; --set name=NAME " in told) is is_told


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ["--tasks", "1/2"],
            "--tasks 1/2: it selects tasks of one step, and no step is given; add --only-step STEP, such as embed",
        ),
        (
            ["--before", "embed", "--only-step", "embed"],
            "--before and --only-step: they cannot be combined",
        ),
        (
            ["--only-step", "embed", "--accept-changed-inputs"],
            "no effect with --only-step; add it to the --before job",
        ),
        (
            ["--only-step", "embed", "--tasks", "0/4"],
            "--tasks 0/4: it is not K/N with 1 ≤ K ≤ N; for the third of 64 jobs use --tasks 3/64",
        ),
        (["--only-step", "embed", "--tasks", "5/4"], "--tasks 5/4: it is not K/N"),
    ],
)
def test_options_that_do_not_go_together_are_told(
    recipe_for, tmp_path, capsys, options, told
):
    path = tmp_path / "r.yaml"
    path.write_text(recipe_for(tmp_path / "run").dump())
    assert main(["run", str(path), *options]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("recipes", [[], ["r.yaml", "--preset", "paper-128k"]])
def test_a_plan_is_of_a_recipe_or_a_preset(capsys, recipes):
    assert main(["plan", *recipes]) == 2
    assert capsys.readouterr().err.startswith("error: plan: ")


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--workers", "0", "0 is not a whole number of at least 1"),
        ("--nodes", "1.5", "1.5 is not a whole number of at least 1"),
        ("--chunks", "-1", "-1 is not a number above 0, such as 1e8"),
        ("--chunks", "nan", "nan is not a number above 0"),
        ("--gpu-tflops", "fast", "fast is not a number above 0"),
    ],
)
def test_a_number_that_is_none_is_told(capsys, option, value, told):
    with pytest.raises(SystemExit) as left:
        main(["plan", "r.yaml", f"{option}={value}"])
    assert left.value.code == 2
    assert told in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_told_before_hours_of_work(
    recipe_for, tmp_path, capsys
):
    path = tmp_path / "r.yaml"
    path.write_text(recipe_for(tmp_path / "run").dump())
    table = tmp_path / "none" / "t.csv"
    assert (
        main(
            [
                "sweep",
                str(path),
                "--over",
                "chunk.max_chars=512,1024",
                "--csv",
                str(table),
            ]
        )
        == 2
    )
    assert capsys.readouterr().err.startswith(f"error: {table}: ")
    assert not (tmp_path / "run").exists()


def test_an_axis_that_is_none_is_told(recipe_for, tmp_path, capsys):
    path = tmp_path / "r.yaml"
    path.write_text(recipe_for(tmp_path / "run").dump())
    assert main(["sweep", str(path), "--over", "chunk.max_chars"]) == 2
    assert "chunk.max_chars" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--into", ""], "--into: it is empty; give a folder or a URL, or remove it"),
        (
            ["--by", "tokens"],
            "--by tokens: it needs proportions; add --mix 1,2 or remove --by",
        ),
        (["--mix", "1,a"], "--mix 1,a: not all proportions are numbers; write them"),
        (["--to", "parket"], "did you mean 'parquet'?"),
    ],
)
def test_what_cannot_be_written_is_told_with_its_cure(
    shared_run, capsys, options, told
):
    assert main(["export", str(shared_run), *options]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
