import pytest

from nextlong.cli.main import main


@pytest.mark.parametrize("recipes", [[], ["r.yaml", "--preset", "paper-128k"]])
def test_a_plan_is_of_a_recipe_or_a_preset(capsys, recipes):
    assert main(["plan", *recipes]) == 2
    assert "plan needs a recipe or a preset, one of the two" in capsys.readouterr().err


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
