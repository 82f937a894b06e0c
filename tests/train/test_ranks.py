import pytest
import yaml

from nextlong.errors import RecipeError

pytestmark = pytest.mark.heavy


def train(recipe, console):
    from nextlong.train.start import train as start

    return start(recipe, console)


def test_sharing_needs_someone_to_share_with(train_recipe, quiet):
    with pytest.raises(RecipeError, match=r"memory\.shard=fsdp2 shares weights among ranks, and there is one"):
        train(train_recipe({"memory.shard": "fsdp2"}), quiet)


def test_context_parallelism_from_the_launcher_is_refused(train_recipe, command, tmp_path):
    """accelerate takes it from the environment, as `accelerate launch` sets it."""
    path = tmp_path / "recipe.yaml"
    path.write_text(train_recipe({"memory.shard": "fsdp2"}).dump())
    asked = {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", "PARALLELISM_CONFIG_CP_SIZE": "2"}
    done = command("train", path, ranks=2, check=False, **asked)
    assert done.returncode != 0
    assert "drops the document mask in silence" in done.stderr
    assert yaml.safe_load(path.read_text())["memory"]["context_parallel"] == 1
