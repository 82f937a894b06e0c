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
