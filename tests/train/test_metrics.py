import pytest

pytestmark = pytest.mark.heavy


def train(recipe, console):
    from nextlong.train.start import train as start

    return start(recipe, console)


def test_tensorboard(train_recipe, quiet):
    pytest.importorskip("tensorboard")
    final = train(train_recipe({"watch.tensorboard": "on"}), quiet)
    assert list((final.parent / "tensorboard").glob("events.*"))
