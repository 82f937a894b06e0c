"""The record beside a delivered data set, where the package's own metadata cannot be had."""

import json
from importlib.metadata import PackageNotFoundError, version

from nextlong.engine import runner
from nextlong.runs import export as runs_export


def test_a_run_of_a_copied_source_tree_finishes_and_says_so(recipe_for, tmp_path, monkeypatch):
    def found(package):
        if package == "nextlong":  # run from its folder, never installed
            raise PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(runner, "version", found)
    options = (
        "executor=serial",
        f"export.push={tmp_path / 'published'}",
        "compose.method=standard",
        "export.formats=jsonl",
    )
    written = runs_export.run(recipe_for(tmp_path / "run", *options))
    assert all("nextlong" not in step.manifest["versions"] for step in written.done.values())
    (record,) = (tmp_path / "published").rglob("manifest.json")
    assert json.loads(record.read_text("utf-8"))["nextlong"] == "not installed as a package"
    assert "not installed as a package" in (record.parent / "README.md").read_text("utf-8")
