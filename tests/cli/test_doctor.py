"""What `nextlong doctor` says of this installation and of invented ones."""

import io
from importlib import metadata

from rich.console import Console

import nextlong
from nextlong.pipeline import usable_cpus
from nextlong.report import installation


def test_this_machine():
    found = installation.examine()
    assert found.nextlong == nextlong.__version__
    assert found.hardware.cpus == usable_cpus()
    assert found.hardware.memory_bytes > 1 << 28
    for package in found.core:
        assert package.installed == metadata.version(package.name)


def installed(monkeypatch, versions, requires):
    """Let the metadata say that `nextlong` requires so, and that packages have these versions."""

    def version(name):
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(installation.metadata, "version", version)
    monkeypatch.setattr(installation.metadata, "requires", lambda _: requires)
    monkeypatch.setattr(installation, "_is_installed", lambda: True)
    monkeypatch.setattr(installation, "_extras", lambda: ["s3", "ray", "short-text"])


REQUIRES = [
    "numpy>=1.26",
    's3fs>=2024.6; extra == "s3"',
    'ray>=2.40; extra == "ray"',
    'lm-eval>=0.4; extra == "short-text"',
    'nextlong[ray]; extra == "short-text"',
]


def test_a_broken_core_is_no_success(monkeypatch):
    installed(monkeypatch, {"numpy": "1.20.0"}, REQUIRES)
    found = installation.examine()
    assert not found.is_whole
    file = io.StringIO()
    installation.show(found, Console(file=file, width=80))
    assert "broken: numpy>=1.26 (1.20.0); say pip install --upgrade nextlong" in file.getvalue()
