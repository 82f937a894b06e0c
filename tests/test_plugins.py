"""Methods that other distributions bring: a tiny package, sound or broken, found by its entry point."""

import sys
from pathlib import Path

import numpy as np
import pytest

import nextlong
from nextlong import plugins
from nextlong.cli.main import main
from nextlong.errors import PluginError, RecipeError
from nextlong.plugins import METHODS, Registry
from nextlong.recipe import Recipe
from nextlong.recipe.recipe import commented
from nextlong.report.plan.trial import recipe_for, try_route

# The example of the documentation, as it stands there.
PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
SOUND = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
PLAIN = {
    "run_dir": "r",
    "ingest": {"sources": [{"path": "a.jsonl"}]},
    "tokenizer": {"train": 300},
}


@pytest.fixture
def bring(tmp_path, monkeypatch):
    """A function that installs a distribution with one module and one entry point, as pip leaves it."""

    def install(
        source, *, name="longest", distribution="more-methods", module="more_methods"
    ):
        site = tmp_path / distribution
        site.mkdir()
        (site / f"{module}.py").write_text(source, encoding="utf-8")
        info = site / f"{distribution.replace('-', '_')}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n",
            encoding="utf-8",
        )
        (info / "entry_points.txt").write_text(
            f"[nextlong.methods]\n{name} = {module}:METHOD\n", encoding="utf-8"
        )
        monkeypatch.syspath_prepend(site)
        monkeypatch.delitem(sys.modules, module, raising=False)

    yield install
    for module in ("more_methods", "other_methods"):
        sys.modules.pop(module, None)


def recipe(*overrides, **sections):
    return Recipe.from_dict(
        PLAIN | sections, overrides=["compose.method=longest", *overrides]
    )


def test_a_method_from_outside_runs_reports_and_verifies(
    bring, recipe_for, started, tmp_path, capsys
):
    bring(SOUND)
    asked = recipe_for(
        started(tmp_path / "run"),
        "compose.method=longest",
        "longest.least_tokens=100",
        "compose.sequences=3",
        "workers=1",
    )
    run = nextlong.run(asked)
    assert len(run) == 3
    counts = np.concatenate(
        [np.load(path) for path in run.steps["lengths"].files(".lengths.npy")]
    )
    docs = np.load(run.steps["documents"].file(".docs.npy"))
    longest = np.add.reduceat(
        counts, np.cumsum(docs["chunks"]) - docs["chunks"]
    ).argmax()
    assert next(run.sequences()).spans[0].chunk_id == docs["first_chunk"][longest]
    assert {sequence.method for sequence in run.sequences()} == {"longest"}
    for words in (["stats"], ["peek"], ["verify"]):
        assert main([*words, str(run.path)]) == 0
    shown = capsys.readouterr().out
    assert "longest" in shown
    assert "no breach" in shown
    assert nextlong.open(run.path).recipe == asked


def test_its_options_are_planned_for_as_they_are(bring, tmp_path):
    bring(
        SOUND.replace("least_tokens", "queries").replace("longest", "lengthy"),
        name="lengthy",
    )
    texts = [
        "\n".join(
            f"Text {n} has line {k} about ropes, tides and {n * k} gulls."
            for k in range(40)
        )
        for n in range(60)
    ]
    settings = [
        "compose.method=lengthy",
        "lengthy.queries=7",
        "compose.target_tokens=1024",
    ]  # no queries that a model writes
    asked = Recipe.from_dict(PLAIN, overrides=settings)
    assert recipe_for(asked, texts, tmp_path, chars_per_token=4.0).options.queries == 7
    assert "draft" in try_route(asked, texts, chars_per_token=4.0).seconds


def test_its_options_are_a_section_of_the_recipe(bring):
    bring(SOUND)
    assert recipe("longest.least_tokens=7").options.least_tokens == 7
    assert recipe().options.least_tokens == 0
    with pytest.raises(
        RecipeError,
        match="'longest.least_token'.*'longest.least_tokens'",
    ):
        recipe("longest.least_token=7")
    with pytest.raises(RecipeError, match="longest.least_tokens must"):
        recipe("longest.least_tokens=many")
    assert "  least_tokens: 0" in commented(recipe(), heading="")
    assert "longest" in METHODS.names()


def test_without_its_distribution_the_method_is_not_known():
    with pytest.raises(
        RecipeError,
        match="compose.method must .*'knn', .*'longest'",
    ):
        recipe()
    with pytest.raises(RecipeError, match="key 'longest'"):
        Recipe.from_dict(PLAIN | {"longest": {}})


OWNER = "method 'longest' of the distribution more-methods 1.2"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            "import no_such_module",
            "it cannot be loaded: ModuleNotFoundError: No module named "
            "'no_such_module'",
        ),
        ("1 / 0", "it cannot be loaded: ZeroDivisionError: division by zero"),
        (
            "",
            "it cannot be loaded: AttributeError: module 'more_methods' has no "
            "attribute 'METHOD'",
        ),
        (
            "METHOD = 3",
            "it has None for its Options, which must be a subclass of "
            "nextlong.recipe.Section",
        ),
        (
            SOUND.replace("int = Field(0, description", "int = Field(description"),
            "it has no default for its option 'least_tokens'",
        ),
    ],
)
def test_a_broken_package_is_named(bring, source, told):
    bring(source)
    with pytest.raises(PluginError) as caught:
        recipe()
    assert caught.value.where == OWNER
    assert caught.value.problem == told
    assert "uninstall" in caught.value.fix
    Recipe.from_dict(PLAIN)  # others are none the worse for it


def test_what_is_no_method_is_named(bring, tmp_path):
    bring("from nextlong.recipe import Section\nclass METHOD:\n    Options = Section\n")
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "a few words"}\n', encoding="utf-8")
    asked = recipe(
        f"ingest.sources.0.path={source}",
        f"run_dir={tmp_path / 'run'}",
        "compose.target_tokens=2",
    )
    with pytest.raises(PluginError, match="<class") as caught:
        nextlong.run(asked)
    assert caught.value.where == OWNER


def test_a_method_that_needs_keywords_must_say_how_they_are_read(
    bring, recipe_for, started, tmp_path
):
    bring(
        SOUND.replace(
            "    Options = Longest\n",
            "    Options = Longest\n    needs = frozenset({Need.KEYWORDS})\n",
        ).replace("    DraftRequest,\n", "    DraftRequest,\n    Need,\n")
    )
    with pytest.raises(PluginError, match="keywords.*Keywords") as caught:
        nextlong.run(recipe_for(started(tmp_path / "run"), "compose.method=longest"))
    assert caught.value.where == OWNER


def test_a_name_that_two_bring_or_that_recipes_use(bring):
    bring(SOUND.replace("longest", "export"), name="export")
    with pytest.raises(PluginError, match="recipes use") as caught:
        Recipe.from_dict(PLAIN, overrides=["compose.method=export"])
    assert caught.value.where == OWNER.replace("longest", "export")
    bring(SOUND, name="export", distribution="other-methods", module="other_methods")
    with pytest.raises(
        PluginError, match=r"more-methods 1\.2 and other-methods 1\.2"
    ) as caught:
        METHODS.load("export", object)
    assert caught.value.where == "method 'export'"


def test_built_in_ones_are_the_modules_of_the_folder_and_cannot_be_replaced(bring):
    assert {
        "entropy",
        "iclm",
        "knn",
        "litelong",
        "nextlong",
        "quest",
        "splice",
        "standard",
        "untie_the_knots",
    } <= set(METHODS.built_in)
    assert all(METHODS.load(name, object).name == name for name in METHODS.built_in)
    assert METHODS.origin("knn") == "nextlong"
    with pytest.raises(KeyError):
        METHODS.load("neither", object)
    bring(SOUND, name="knn")
    with pytest.raises(PluginError, match=r"built in.*more-methods 1\.2") as caught:
        METHODS.load("knn", object)
    assert caught.value.where == "method 'knn'"
    with pytest.raises(PluginError, match="built in"):
        METHODS.names()


def test_a_name_that_two_modules_of_the_folder_declare_is_an_error(
    tmp_path, monkeypatch
):
    package = tmp_path / "twice"
    package.mkdir()
    for name, text in {
        "__init__": "",
        "a": "FORMAT_B = 1\n",
        "b": "FORMAT = 2\n",
    }.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        PluginError, match=r"twice\.a\.FORMAT_B and twice\.b\.FORMAT"
    ) as caught:
        Registry("format", "twice", "FORMAT", "twice").names()
    assert caught.value.where == "format 'b'"


RAISES = (
    SOUND
    + """

_draft = type(METHOD).draft


def _failing(self, documents, options, request):
    return {}["a key that is missing"]


type(METHOD).draft = _failing
"""
)
OUT_OF_RANGE = (
    SOUND
    + """

_draft = type(METHOD).draft


def _too_many(self, documents, options, request):
    drafted = _draft(self, documents, options, request)
    first = drafted.drafts[0]
    chunks = np.full(len(first.documents), 1000)
    return dataclasses.replace(drafted, drafts=[first._replace(chunks=chunks)])


import dataclasses

import numpy as np

type(METHOD).draft = _too_many
"""
)


def test_an_exception_of_a_plug_in_names_it_and_its_place(
    bring, recipe_for, started, tmp_path, capsys
):
    bring(RAISES)
    path = tmp_path / "r.yaml"
    settings = ("compose.method=longest", "executor=serial")
    run = started(tmp_path / "run")
    path.write_text(recipe_for(run, *settings).dump(), encoding="utf-8")
    assert main(["run", str(path)]) == 2
    err = capsys.readouterr().err
    assert "method 'longest' of the distribution more-methods 1.2: KeyError: " in err
    assert "more_methods.py, line " in err
    assert ", in _failing)" in err
    assert "Traceback" not in err
    assert main(["run", str(path), "-v"]) == 2
    err = capsys.readouterr().err
    assert 'return {}["a key that is missing"]' in err
    assert "Traceback" in err


def test_a_draft_of_chunks_that_do_not_exist_is_refused(
    bring, recipe_for, started, tmp_path
):
    bring(OUT_OF_RANGE)
    run = started(tmp_path / "run")
    settings = recipe_for(run, "compose.method=longest", "executor=serial")
    with pytest.raises(PluginError, match="takes 1000 chunks of document "):
        nextlong.pipeline.run(settings)


def test_a_run_outlives_its_plug_in(
    bring, recipe_for, started, tmp_path, capsys, monkeypatch
):
    bring(SOUND)
    path = tmp_path / "r.yaml"
    run = str(started(tmp_path / "run"))
    path.write_text(recipe_for(run, "executor=serial").dump(), encoding="utf-8")
    assert main(["run", str(path), "--set", "compose.method=longest"]) == 0
    assert main(["run", str(path), "--set", "compose.method=standard"]) == 0
    module = tmp_path / "more-methods" / "more_methods.py"
    capsys.readouterr()
    for fault in ("raise ImportError('no such library')", None):
        if fault is None:
            # Uninstalled.
            monkeypatch.setattr(
                sys, "path", [one for one in sys.path if "more-methods" not in one]
            )
        else:
            module.write_text(fault, encoding="utf-8")
        monkeypatch.delitem(sys.modules, "more_methods", raising=False)
        assert main(["list", run]) == 0
        assert "compose.method=" in capsys.readouterr().out
        assert main(["peek", f"{run}@longest"]) == 2
        err = capsys.readouterr().err
        assert "method 'longest'" in err
        assert "gc" not in err
    assert err.endswith(
        "which is not installed; install the package that it comes from\n"
    )


def test_a_fault_is_looked_for_in_the_extensions_of_every_kind():
    registries = [
        value for value in vars(plugins).values() if isinstance(value, Registry)
    ]
    searched = {registry.kind for registry in plugins._REGISTRIES}
    assert searched == {registry.kind for registry in registries}
