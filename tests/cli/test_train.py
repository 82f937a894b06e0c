import pytest

pytestmark = pytest.mark.heavy


def train(recipe, console):
    from nextlong.train.start import train as start

    return start(recipe, console)


def test_the_command_says_it_without_a_traceback(command, tmp_path):
    done = command("train", tmp_path / "none.yaml", check=False)
    assert done.returncode == 2
    assert "nextlong train init" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_that_is_none_is_told_before_the_recipe_is_written(command, shared_run, tmp_path):
    init = ("train", "init", tmp_path / "t.yaml", "--data", shared_run, "--model")
    done = command(*init, tmp_path / "none", check=False)
    assert done.returncode == 2
    assert f"--model {tmp_path / 'none'} is not there; name a folder with config.json and weights" in done.stderr
    assert not (tmp_path / "t.yaml").exists()
    assert (
        "no_such_model is no folder here, so it is looked for on the Hugging Face hub"
        in command(*init, "no_such_model").stdout
    )
