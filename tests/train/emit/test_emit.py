import json
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from llama_config import LLAMA
from nextlong.train.emit import TRAINERS, emit


@pytest.mark.parametrize("name", TRAINERS)
def test_scripts_are_well_formed_and_data_lies_beside(recipe, console, tmp_path, name):
    emit(recipe(), name, tmp_path / name, console)
    subprocess.run(["bash", "-n", tmp_path / name / "launch.sh"], check=True)
    assert list((tmp_path / name / "data").rglob("*.*"))
    assert (tmp_path / name / "launch.sh").stat().st_mode & 0o111
    assert yaml.safe_load((tmp_path / name / "recipe.yaml").read_text())["training"]["lr"] == 4e-5


@pytest.mark.parametrize("name", ["prolong", "megatron"])
def test_paths_with_spaces_and_quotes_stay_whole(recipe, console, tmp_path, name):
    named = tmp_path / "my 'best' $model"
    named.mkdir()
    (named / "config.json").write_text(json.dumps(LLAMA))
    made = recipe()
    made = made.model_copy(update={"model": made.model.model_copy(update={"path": str(named)})})
    emit(made, name, tmp_path / "my runs" / name, console)
    lines = (tmp_path / "my runs" / name / "launch.sh").read_text().split("torchrun ", 1)[1]
    words = shlex.split(lines.replace("\\\n", " "))
    assert str(named) in words
    if name == "megatron":
        assert str(tmp_path / "my runs" / name / "data" / "part-00000") in words


def test_a_relative_model_is_found_from_the_launch_folder(recipe, console, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    emit(recipe("model.path=llama"), "axolotl", Path("a"), console)
    assert yaml.safe_load((tmp_path / "a" / "axolotl.yaml").read_text())["base_model"] == str(tmp_path / "llama")
