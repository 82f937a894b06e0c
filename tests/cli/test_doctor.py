"""What `nextlong doctor` says of this installation and of invented ones."""

import io
from importlib import metadata

from rich.console import Console

import nextlong
from installed import REQUIRES, installed
from nextlong.pipeline import usable_cpus
from nextlong.report import installation


def test_this_machine():
    found = installation.examine()
    assert found.nextlong == nextlong.__version__
    assert found.hardware.cpus == usable_cpus()
    assert found.hardware.memory_bytes > 1 << 28
    for package in found.core:
        assert package.installed == metadata.version(package.name)


def test_a_broken_core_is_no_success(monkeypatch):
    installed(monkeypatch, {"numpy": "1.20.0"}, REQUIRES)
    found = installation.examine()
    assert not found.is_whole
    file = io.StringIO()
    installation.show(found, Console(file=file, width=80))
    assert "broken: numpy>=1.26 (1.20.0); say pip install --upgrade nextlong" in file.getvalue()


def test_what_is_missing_stands_once_with_its_cure(monkeypatch):
    installed(monkeypatch, {"numpy": "2.0.0", "ray": "2.50.0"}, REQUIRES)
    file = io.StringIO()
    installation.show(installation.examine(), Console(file=file, width=120))
    rows = [" ".join(line.split()) for line in file.getvalue().splitlines()]
    assert [row for row in rows if "s3" in row] == [
        "s3 s3:// inputs and exports missing s3fs: pip install 'nextlong[s3]'"
    ]
    assert "ray executor: ray ready" in rows
