import io
import re
import tomllib
from pathlib import Path

from rich.console import Console
from tests.support.installed import REQUIRES, installed

from nextlong.engine import executor
from nextlong.report import installation

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]
DEVELOPERS = {"bench", "browser", "dev", "docs", "heavy"}
NAMING = (
    "README.md",
    "CONTRIBUTING.md",
    "pyproject.toml",
    "Makefile",
    ".ci/run",
)  # the CHANGELOG has older names
FOLDERS = ("src", "recipes", "bench", "docs", "examples")


def test_every_extra_of_the_package_has_a_purpose():
    assert set(installation._FEATURES) == set(EXTRAS) - DEVELOPERS


def _named(text):
    lists = re.findall(r"""(?:\bnextlong|[`'"]\.|\.whl\)?)\[([a-z0-9,-]+)\]""", text)
    return {extra for extras in lists for extra in extras.split(",")}


def test_every_extra_that_is_named_anywhere_is_one_of_the_package():
    inside = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
    files = [ROOT / name for name in NAMING] + [
        path for path in inside if path.suffix in {".md", ".py", ".yaml", ".ipynb"}
    ]
    named = {
        (str(path.relative_to(ROOT)), extra)
        for path in files
        for extra in _named(path.read_text("utf-8"))
    }
    assert {file.partition("/")[0] for file, _ in named} >= {
        ".ci",
        "Makefile",
        "README.md",
        "docs",
        "recipes",
        "src",
    }
    assert {(file, extra) for file, extra in named if extra not in EXTRAS} == set()


def test_ci_installs_or_resolves_every_extra():
    found = set()
    more = _named(
        (ROOT / ".ci" / "run").read_text("utf-8")
        + (ROOT / "Makefile").read_text("utf-8")
    )
    while more:
        found |= more
        more = {
            extra for one in more for extra in _named(" ".join(EXTRAS[one]))
        } - found
    assert set(EXTRAS) == found


def test_the_memory_is_what_a_container_may_use(tmp_path, monkeypatch):
    (tmp_path / "process.max").write_text("1048576\n")
    monkeypatch.setattr(executor, "_CONTAINER_LIMITS", (tmp_path / "process.max",))
    assert installation.examine()["hardware"]["memory_bytes"] == 1 << 20


def test_what_is_missing_or_too_old_is_named_with_the_command_that_adds_it(monkeypatch):
    installed(
        monkeypatch, {"numpy": "2.3.0", "s3fs": "2026.1.0", "ray": "2.9.0"}, REQUIRES
    )
    found = installation.examine()
    assert found["is_whole"]
    assert [package["name"] for package in found["core"]] == ["numpy"]
    s3, ray, short = found["features"]
    assert (s3["missing"], s3["cure"]) == ([], None)
    assert (ray["missing"], ray["cure"]) == (
        ["ray>=2.40 (2.9.0 is installed)"],
        "pip install 'nextlong[ray]'",
    )
    assert short["missing"] == ["lm-eval", "ray>=2.40 (2.9.0 is installed)"]
    file = io.StringIO()
    installation.show(
        found, Console(file=file, force_terminal=True, width=80, color_system=None)
    )
    assert "pip install 'nextlong[ray]'" in " ".join(file.getvalue().split())
