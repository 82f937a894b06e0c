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
