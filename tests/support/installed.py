"""Invented installations: what the metadata of packages say."""

from importlib import metadata

from nextlong.report import installation


def installed(monkeypatch, versions, requires):
    """Let the metadata say that `nextlong` requires so, and that packages have these versions."""

    def version(name):
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(installation.metadata, "version", version)
    monkeypatch.setattr(installation.metadata, "requires", lambda _: requires)
    monkeypatch.setattr(installation.metadata, "distributions", lambda name: [name])


REQUIRES = [
    "numpy>=1.26",
    's3fs>=2024.6; extra == "s3"',
    'ray>=2.40; extra == "ray"',
    'lm-eval>=0.4; extra == "short-text"',
    'nextlong[ray]; extra == "short-text"',
]
