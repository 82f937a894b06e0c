import io
import tomllib
from pathlib import Path

from rich.console import Console

from installed import REQUIRES, installed
from nextlong.engine import memory
from nextlong.report import installation

DEVELOPERS = {"bench", "browser", "dev", "docs", "heavy"}


def test_every_extra_of_the_package_has_a_purpose():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(installation.FEATURES) == set(project["optional-dependencies"]) - DEVELOPERS


def test_the_memory_is_what_a_container_may_use(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("1048576\n")
    monkeypatch.setattr(memory, "_CONTAINER_LIMITS", (tmp_path / "memory.max",))
    assert installation.examine().hardware.memory_bytes == 1 << 20


def test_what_is_missing_or_too_old_is_named_with_the_command_that_adds_it(monkeypatch):
    installed(monkeypatch, {"numpy": "2.3.0", "s3fs": "2026.1.0", "ray": "2.9.0"}, REQUIRES)
    found = installation.examine()
    assert found.is_whole
    assert [package.name for package in found.core] == ["numpy"]
    s3, ray, short = found.features
    assert (s3.missing, s3.cure) == ((), None)
    assert (ray.missing, ray.cure) == (("ray>=2.40 (is 2.9.0)",), "pip install 'nextlong[ray]'")
    assert short.missing == ("lm-eval", "ray>=2.40 (is 2.9.0)")
    file = io.StringIO()
    installation.show(found, Console(file=file, force_terminal=True, width=80, color_system=None))
    assert "pip install 'nextlong[ray]'" in " ".join(file.getvalue().split())
