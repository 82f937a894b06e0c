import pytest

pytestmark = pytest.mark.heavy


def train(recipe, console):
    from nextlong.train.loop import train as start

    return start(recipe, console)


def test_the_command_says_it_without_a_traceback(command, tmp_path):
    done = command("train", tmp_path / "none.yaml", check=False)
    assert done.returncode == 2
    assert "nextlong train init" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_that_is_none_is_told_before_the_recipe_is_written(
    command, shared_run, tmp_path
):
    init = ("train", "init", tmp_path / "t.yaml", "--data", shared_run, "--model")
    done = command(*init, tmp_path / "none", check=False)
    assert done.returncode == 2
    assert (
        f"--model {tmp_path / 'none'}: it does not exist; use a folder with config.json and weights"
        in done.stderr
    )
    assert not (tmp_path / "t.yaml").exists()
    assert (
        "no_such_model is not a local folder, so it will be loaded from the Hugging Face hub"
        in command(*init, "no_such_model").stdout
    )


def test_init_makes_steps_of_whole_rows(command, shared_run, tmp_path):
    """The preset's 8,192 tokens are no whole rows of 3 · 1,024, and are four of the run's 2,048."""
    init = (
        "train",
        "init",
        tmp_path / "t.yaml",
        "--data",
        shared_run,
        "--preset",
        "tiny",
        "--force",
    )
    assert "tokens_per_step" not in command(*init).stdout
    packed = (*init, "--set", "data.pack=3072")
    assert (
        "training.tokens_per_step: 9,216 instead of 8,192, a multiple of the rows' 3,072 tokens"
        in command(*packed).stdout
    )
    assert "tokens_per_step: 9216" in (tmp_path / "t.yaml").read_text()
    command(*packed, "--set", "training.tokens_per_step=8192")
    assert "tokens_per_step: 8192" in (tmp_path / "t.yaml").read_text()
