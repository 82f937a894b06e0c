"""What the tests of every importer call."""

from rich.console import Console

from nextlong.evaluate.importing.files import import_results


def read_into(files, *, out, label=None):
    return import_results(files, out=out, label=label, console=Console(quiet=True))
