"""Several variants in one run directory: listed, named, not taken for one another, cleaned up."""

import io
import json
import os
import shutil
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from tests.support.killed import kill_at_removal, kill_forked_at

import nextlong
from nextlong.artifacts import variant_records
from nextlong.cli import inspect
from nextlong.cli.main import main
from nextlong.errors import RunError
from nextlong.runs import export as runs_export
from nextlong.runs.variants import SEARCH_INDEX, VARIANTS_META, list_variants
from nextlong.verify.checks import verify

NAMES = ["base", "formats-torchtitan", "short"]


@pytest.fixture(scope="module")
def three(few_recipe, few_run, tmp_path_factory):
    """A run directory with three variants; read-only."""
    run_dir = Path(shutil.copytree(few_run, tmp_path_factory.mktemp("three") / "run"))
    recipe = run_dir.parent / "my.yaml"
    recipe.write_text(few_recipe(run_dir).dump())
    for overrides in (
        ["export.formats=[torchtitan]"],
        ["compose.target_tokens=512", "name=short"],
    ):
        nextlong.run(nextlong.Recipe.load(recipe, overrides=overrides))
    return run_dir


@pytest.fixture
def own(three, tmp_path):
    """A copy to alter."""
    return Path(shutil.copytree(three, tmp_path / "run"))


@pytest.fixture
def call(capsys):
    def called(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return called


def folders(run_dir):
    return {path.name for path in run_dir.glob("[0-9]*")}


@pytest.mark.parametrize("command", ["list", "gc"])
def test_commands_on_all_variants_want_the_run_directory(three, call, command):
    code, out, err = call(command, f"{three}@short")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {three}@short: ")
    assert err.endswith(f": {three}\n")


# list


def test_list_says_what_tells_variants_apart(three, call):
    code, out, _ = call("list", three)
    assert code == 0
    *lines, told = out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == NAMES
    blocks = [
        dict(line.strip().split("  ", 1) for line in block) for block in _blocks(lines)
    ]
    assert [block["sequences"].strip() for block in blocks] == [
        "4 of 1,024 tokens", "4 of 1,025 tokens", "4 of 512 tokens",
    ]  # fmt: skip
    assert "differs in" not in blocks[0]
    assert [block["differs in"].strip() for block in blocks[1:]] == [
        "export.formats=torchtitan", "compose.target_tokens=512",
    ]  # fmt: skip
    assert blocks[1]["rows"].strip() == "torchtitan"
    assert told.startswith(f"{three} opens base, ")
    assert told.endswith(f" {three}@NAME")


def _blocks(lines):
    """Return the indented lines below each name."""
    starts = [place for place, line in enumerate(lines) if not line.startswith(" ")]
    return [
        lines[start + 1 : stop]
        for start, stop in zip(starts, [*starts[1:], None], strict=True)
    ]


def test_names_stay_whole_on_a_narrow_terminal_and_fewer_sequences_have_their_reason(
    own, recipe, call
):
    name = "compose.method=standard,compose.sequences=100000"
    call(
        "run",
        recipe,
        "--set",
        "compose.method=standard",
        "--set",
        "compose.sequences=100000",
        "--set",
        f"name={name}",
    )
    listed = {one.name: one for one in list_variants(own)}
    assert listed["base"].why_fewer == ""
    assert "documents gave" in listed[name].why_fewer
    assert set(listed[name].differs) == {"compose.method", "compose.sequences"}
    file = io.StringIO()
    console = Console(file=file, width=40, force_terminal=True, color_system=None)
    for variant in listed.values():
        inspect._show_variant(variant, console)
    shown = file.getvalue()
    assert name in shown.splitlines()
    assert "requested 100,000" in " ".join(shown.split())


def test_list_as_json(three, call):
    listed = json.loads(call("list", three, "--json")[1])
    assert [one["name"] for one in listed] == NAMES
    assert [one["is_current"] for one in listed] == [True, False, False]
    assert listed[2]["differs"] == {"compose.target_tokens": 512}
    assert all(
        (three / folder).is_dir()
        for one in listed
        for folder in one["exports"].values()
    )
    assert all(0 < one["alone_bytes"] < one["bytes"] for one in listed)


def test_list_of_nothing(tmp_path, call):
    code, out, err = call("list", tmp_path)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {tmp_path}: ")


def test_list_of_an_interrupted_run_names_its_unfinished_steps(tmp_path, call):
    (tmp_path / "04-chunk-abc").mkdir()
    for number in range(2):
        (tmp_path / "04-chunk-abc" / f".part-{number:05d}.json").write_text("{}")
    code, _, err = call("list", tmp_path)
    assert code == 2
    assert "chunk (2 tasks done);" in err
    assert call("verify", tmp_path) == (2, "", err)


def test_what_a_failed_attempt_left_is_not_listed(three, call):
    folder = three / "05-tokenizer-0123456789ab"
    folder.mkdir()
    code, out, _ = call("list", three)
    folder.rmdir()
    assert code == 0
    assert "stopped in" not in out


# named, everywhere a run goes


def test_a_variant_goes_wherever_a_run_goes(three, call):
    for name, tokens in zip(NAMES, ("1,024", "1,025", "512"), strict=True):
        assert f"{three}@{name}" in call("peek", f"{three}@{name}")[1]
        measured = json.loads(call("stats", f"{three}@{name}", "--json")[1])
        assert (measured["run"], f"{measured['setting']['target_tokens']:,}") == (
            f"{three}@{name}",
            tokens,
        )
    assert call("verify", f"{three}@base", "--sample", "2")[0] == 0
    assert call("compare", f"{three}@base", f"{three}@short")[0] == 0
    assert call("compare", f"{three}@*", "--csv")[1].count("\n") == 1 + len(NAMES)
    err = call("compare", f"{three}@x*")[2]
    assert err.startswith(f"error: {three}@x*: ")
    assert f"{three} has: {', '.join(NAMES)}" in err


def test_export_takes_the_variant_that_is_named(own):
    written = runs_export.export([f"{own}@short"], formats=["arrow"])
    assert written.recipe.compose.target_tokens == 512
    assert "arrow" in nextlong.open(f"{own}@short").steps
    assert "arrow" not in nextlong.open(own).steps


@pytest.fixture
def recipe(own, few_recipe, tmp_path):
    """The recipe file of `own`."""
    path = tmp_path / "r.yaml"
    path.write_text(few_recipe(own).dump())
    return path


def test_a_run_with_set_leaves_run_dir_what_it_is_and_says_how_to_open_the_variant(
    own, recipe, call
):
    before = variant_records.find(own)
    told = call("run", recipe, "--set", "compose.sequences=3")[1]
    facts = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
    assert facts["variant"].strip() == (
        f"sequences-3, opened as {own}@sequences-3, because of --set; {own} still opens base"
    )
    assert facts["inspect"].strip() == f"nextlong peek {own}@sequences-3"
    assert variant_records.find(own) == before
    assert nextlong.Recipe.load(own / "variants/base.yaml") == nextlong.open(own).recipe
    for command, shown in (
        ("peek", "4 sequences"),
        ("stats", "4 sequences"),
        ("export", "4 rows"),
    ):
        assert shown in call(command, own)[1]
    assert (len(nextlong.open(own)), len(nextlong.open(f"{own}@sequences-3"))) == (4, 3)


@pytest.mark.heavy  # a page needs matplotlib
def test_a_variant_has_a_report_of_its_own(own, recipe, call):
    told = call("run", recipe, "--set", "compose.sequences=3")[1]
    facts = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
    assert facts["report"].strip() == f"{own}/report-sequences-3.html"
    assert (own / "report-sequences-3.html").exists()


def test_settings_that_change_no_data_make_no_variant(own, recipe, call):
    told = call(
        "run", recipe, "--set", "workers=1", "--set", "compose.target_tokens=1024"
    )[1]
    assert "because of --set" not in told
    assert variant_records.names(own) == NAMES
    assert variant_records.current(own) == "base"


def test_a_recipe_that_changed_is_what_run_dir_opens_and_the_earlier_one_is_told(
    own, recipe, call
):
    recipe.write_text(
        recipe.read_text().replace("target_tokens: 1024", "target_tokens: 768")
    )
    told = " ".join(call("run", recipe)[1].split())
    assert f"variant: 768-tokens, which {own} now opens; {own}@base opens the" in told
    assert nextlong.open(own).recipe.compose.target_tokens == 768


def test_another_name_for_the_same_settings_is_no_change_of_the_recipe(
    own, recipe, call
):
    told = " ".join(call("run", recipe, "--set", "name=named")[1].split())
    assert f"variant: named, which {own} now opens; {own}@base opens the" in told
    assert "changed" not in told


def test_variants_with_earlier_keys_are_named_with_what_is_unknown(own, call):
    path = own / "variants" / "short.json"
    plain = json.loads(path.read_text())
    plain["recipe"]["mine"]["fetch"] = plain["recipe"]["mine"].pop("candidates")
    path.write_text(json.dumps(plain))
    code, out, err = call("compare", f"{own}@*")
    assert (code, out) == (2, "")
    assert (
        f"{own}@short: it was made by an earlier version of nextlong (unknown key 'mine.fetch' in {path})"
        in err
    )
    assert call("gc", own, "--drop", "short", "--yes")[0] == 0  # as the message says
    assert call("compare", f"{own}@*")[0] == 0


def test_the_only_variant_is_opened_by_run_dir_though_made_with_set(
    few_recipe, started, tmp_path, call
):
    run, path = started(tmp_path / "run"), tmp_path / "r.yaml"
    path.write_text(few_recipe(run, "compose.method=standard").dump())
    told = call("run", path, "--set", "compose.target_tokens=512", "--set", "seed=1")[1]
    name = "512-tokens-seed-1"
    assert (
        f"{name}, opened as {run}@{name}, because of --set; {run} opens it too" in told
    )
    for command in ("peek", "stats", "export", "report", "verify"):
        assert call(command, run)[0] == 0
    assert nextlong.open(run).recipe.compose.target_tokens == 512
    assert f"{run} opens {name}, its only" in " ".join(call("list", run)[1].split())
    # Of two such variants, none is meant by RUN.
    assert call("run", path, "--set", "compose.target_tokens=256")[0] == 0
    code, out, err = call("peek", run)
    assert (code, out) == (2, "")
    assert f"{run}@{name}" in " ".join(err.split())
    assert "recipe's own settings" in " ".join(call("list", run)[1].split())
    assert call("verify", f"{run}@{name}", "--sample", "1")[0] == 0
    assert call("run", path)[0] == 0
    assert nextlong.open(run).recipe.compose.target_tokens == 1024


@pytest.mark.heavy
def test_a_data_set_takes_the_variant_that_is_named(three):
    from nextlong.torch import SequenceDataset

    assert len(SequenceDataset(three)[0]["input_ids"]) == 1024
    assert len(SequenceDataset(f"{three}@short")[0]["input_ids"]) == 512
    with pytest.raises(RunError, match="1,025 tokens"):
        SequenceDataset([f"{three}@base", f"{three}@formats-torchtitan"])


def test_the_run_says_which_variant_it_made(own, few_recipe, tmp_path, call):
    (tmp_path / "r.yaml").write_text(few_recipe(own).dump())
    last = call("run", tmp_path / "r.yaml")[1].splitlines()[-1]
    assert last.split(maxsplit=1) == [
        "variant:",
        f"base, beside formats-torchtitan, short (nextlong list {own})",
    ]
    assert nextlong.open(own).variant.name == "base"
    code, _, err = call("run", tmp_path / "r.yaml", "--set", "name=short")
    assert code == 2
    assert "name=short " in err
    assert "(now compose.target_tokens=1024)" in err


def test_sequences_of_t_and_of_one_more_do_not_mix(three, call):
    code, _, err = call(
        "export", f"{three}@base", f"{three}@formats-torchtitan", "--mix", "1,1"
    )
    assert code == 2
    assert f"1,024 tokens of {three}@base" in err
    assert f"1,025 tokens of {three}@formats-torchtitan" in err


def test_the_same_recipe_again_keeps_what_was_exported_of_its_variant(own, few_recipe):
    runs_export.export([f"{own}@base"], formats=["arrow"])
    nextlong.run(few_recipe(own))
    assert {"arrow", "parquet", "jsonl"} <= nextlong.open(f"{own}@base").steps.keys()


# prune


def test_gc_keeps_every_variant_and_removes_what_none_needs(own, call):
    before = folders(own)
    shutil.copytree(next(own.glob("*-draft-*")), own / "09-draft-0123456789ab")
    (own / "77-embed-ba9876543210").mkdir()
    (own / "77-embed-ba9876543210" / "part-00000.vectors.npy").write_bytes(
        b"x" * 1_500_000
    )
    (next(own.glob("*-chunk-*")) / ".work-00001-abc").mkdir()
    code, out, err = call("gc", own)
    assert code == 2
    assert err.startswith(f"error: {own}: ")
    assert err.endswith(f" nextlong gc {own} --yes\n")
    assert call("gc", own, "--keep", "base")[2].endswith(
        f" gc {own} --keep base --yes\n"
    )
    sizes = [line.split()[1:3] for line in out.splitlines()[1:4]]
    assert [unit for _, unit in sizes[:2]] == ["kB", "kB"]
    assert sizes[2] == ["1.5", "MB"]
    assert out.splitlines()[3].split()[1:] == ["1.5", "MB", "not", "finished"]
    assert call("gc", own, "--yes")[0] == 0
    assert folders(own) == before
    assert not list(own.rglob(".work-*"))
    assert call("gc", own, "--yes")[1] == f"{own}: nothing to clean up\n"
    for name in NAMES:
        assert all(
            outcome.result != "breach"
            for outcome in verify(Path(f"{own}@{name}"), sample=1)
        )


def test_gc_removes_the_index_of_the_viewer(own, call):
    folder = own / SEARCH_INDEX / "0123456789ab-1"
    folder.mkdir(parents=True)
    (folder / "words.arrow").write_bytes(b"x" * 1_500_000)
    (folder / ".words.arrow.7.tmp").write_bytes(b"x" * 100_000)
    before = folders(own)
    code, out, _ = call("gc", own, "--yes")
    assert code == 0
    assert out.splitlines()[1].split()[1:3] == ["1.6", "MB"]
    assert not (own / SEARCH_INDEX).exists()
    assert folders(own) == before
    assert call("gc", own, "--yes")[1] == f"{own}: nothing to clean up\n"


def test_gc_drops_variants_and_what_they_alone_need(own, call):
    alone = set(nextlong.open(f"{own}@short").variant.steps.values()) - {
        folder
        for name in NAMES[:2]
        for folder in nextlong.open(f"{own}@{name}").variant.steps.values()
    }
    code, out, _ = call("gc", own, "--drop", "short", "--yes")
    assert code == 0
    assert {
        Path(line.split()[0]).name for line in out.splitlines() if "by short" in line
    } == alone
    assert not alone & folders(own)
    assert nextlong.open(own).variant.name == "base"
    assert call("gc", own, "--keep", "base", "--yes")[0] == 0
    run = nextlong.open(own)
    assert (run.variant.name, run.other_variants(), len(run)) == ("base", [], 4)
    assert folders(own) == set(run.variant.steps.values())
    assert nextlong.Recipe.load(own / "variants/base.yaml") == run.recipe


def test_gc_keeps_exports_and_mixes_of_a_variant_that_stays(own, call):
    recipe = ["export.pack=8192"]
    packed = (
        runs_export.export([f"{own}@base"], formats=["parquet"], overrides=recipe)
        .done["parquet"]
        .folder
    )
    runs_export.export(
        [f"{own}@base"], formats=["parquet"]
    )  # which the record names from now on
    mixed = runs_export.export(
        [f"{own}@base", f"{own}@short"], formats=["parquet"], overrides=recipe
    ).done
    assert call("gc", own, "--drop", "short", "--yes")[0] == 0
    assert packed.is_dir()
    assert mixed["parquet"].folder.is_dir()
    assert mixed["rows"].folder.is_dir()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--drop", "shrot"],
            "has no variant 'shrot'; name one that it has: base, formats-torchtitan, short",
        ),
        (["--keep", "no"], "has no variant 'no'"),
        (["--drop", *NAMES], "keep one, or delete the folder itself"),
    ],
)
def test_gc_refuses(three, call, options, message):
    before = folders(three)
    code, _, err = call("gc", three, *options, "--yes")
    assert code == 2
    assert message in err
    assert folders(three) == before


def test_gc_of_no_run_makes_no_folder(tmp_path, call):
    assert call("gc", tmp_path / "none", "--yes")[0] == 2
    assert not (tmp_path / "none").exists()


def test_gc_asks_on_a_terminal(own, call, monkeypatch):
    before = folders(own)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert call("gc", own, "--drop", "short")[:2][0] == 0
    assert folders(own) == before
    monkeypatch.setattr("builtins.input", lambda _: "y")
    assert call("gc", own, "--drop", "short")[0] == 0
    assert folders(own) < before


def test_gc_waits_for_no_run_that_is_under_way(own, call):
    from nextlong.engine import store

    with store.locked(own):
        code, _, err = call("gc", own, "--drop", "short", "--yes")
    assert code == 2
    assert "in use" in err


def test_killed_while_it_cleans_up_every_listed_variant_is_whole(own, call):
    """SIGKILL at each removal in turn: what is listed opens and verifies, and the next one finishes."""
    for kills in range(3):
        kill_at_removal(["gc", own, "--keep", "base", "--yes"], kills)
        for name in [one["name"] for one in json.loads(call("list", own, "--json")[1])]:
            assert len(nextlong.open(f"{own}@{name}")) == 4
    assert call("gc", own, "--keep", "base", "--yes")[0] == 0
    assert folders(own) == set(nextlong.open(own).variant.steps.values())
    assert not list(own.glob(".work-*"))


# a sweep


def test_every_variant_keeps_a_recipe_that_runs_with_other_settings(own, recipe, call):
    assert (
        call("run", recipe, "--set", "compose.sequences=2", "--set", "name=few")[0] == 0
    )
    variant = nextlong.open(f"{own}@few").variant
    assert call("run", variant.recipe_file, "--set", "compose.position=tail")[0] == 0
    made = nextlong.open(f"{own}@position-tail").recipe.compose
    assert (made.sequences, made.position) == (2, "tail")
    assert call("gc", own, "--drop", "few", "--yes")[0] == 0
    assert not variant.recipe_file.exists()


def test_a_sweep_that_is_killed_leaves_the_run_that_stood(own, few_recipe, tmp_path):
    (tmp_path / "r.yaml").write_text(few_recipe(own).dump())
    before = nextlong.open(own).variant
    over = [
        "--over",
        "compose.position=tail,random",
        "--over",
        "compose.target_tokens=256,384",
    ]
    kill_forked_at(
        ["sweep", tmp_path / "r.yaml", *over],
        "*/variants/384-tokens-position-tail.json",
    )
    assert (own / "variants" / "256-tokens-position-tail.json").exists()
    assert nextlong.open(own).variant == before
    assert nextlong.Recipe.load(own / "variants/base.yaml") == nextlong.open(own).recipe


def test_the_pages_of_a_variant_go_with_it(own, call):
    names = [variant.name for variant in variant_records.variants(own)]
    current = variant_records.current(own)
    other = next(name for name in names if name != current)
    pages = (
        "report.html",
        f"report-{other}.html",
        f"report-{other}@{current}.html",
        "report-2@variants@0123abcd.html",
    )
    for page in pages:
        shown = current if page == "report.html" else f"{current} {other}"
        (own / page).write_text(f'<meta name="{VARIANTS_META}" content="{shown}">')
    assert call("gc", own, "--drop", other, "--yes")[0] == 0
    assert [path.name for path in own.glob("*.html")] == ["report.html"]


def test_without_the_variant_that_run_dir_opens_it_opens_the_only_other_one(own, call):
    current = variant_records.current(own)
    stays = next(
        variant.name
        for variant in variant_records.variants(own)
        if variant.name != current
    )
    for page in ("report.html", f"report-{stays}.html"):
        shown = current if page == "report.html" else stays
        (own / page).write_text(f'<meta name="{VARIANTS_META}" content="{shown}">')
    told = json.loads(call("gc", own, "--keep", stays, "--json")[1])["folders"]
    assert (told[-1]["path"], told[-1]["why"]) == (
        str(own / "report.html"),
        "shows a deleted variant",
    )
    code, out, _ = call("gc", own, "--keep", stays, "--yes")
    assert code == 0
    assert "report.html" in out
    assert ", 1 page, and" in out
    assert variant_records.current(own) is None
    assert [page.name for page in own.glob("*.html")] == [f"report-{stays}.html"]
    assert nextlong.open(own).variant.name == stays
    assert f"{own} opens {stays}, its only" in " ".join(call("list", own)[1].split())


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with documents and the recipe that `init` writes for them, which is the working directory."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    rows = [
        {"id": n, "text": f"The tide of page {n} lifts {n} boats.\n" * 40}
        for n in range(60)
    ]
    (folder / "pages.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert main(["init", "my.yaml", "pages.jsonl", "--tokenizer", "400"]) == 0
    return folder


SHORT = ("--set", "compose.sequences=2", "--set", "compose.target_tokens=1024")


def test_init_writes_paths_relative_to_the_recipe(project, monkeypatch):
    plain = yaml.safe_load((project / "my.yaml").read_text())
    assert plain["run_dir"] == "runs/my"
    assert [source["path"] for source in plain["ingest"]["sources"]] == ["pages.jsonl"]
    (project / "deep").mkdir()
    assert main(["init", "deep/r.yaml", "pages.jsonl", "--tokenizer", "400"]) == 0
    plain = yaml.safe_load((project / "deep/r.yaml").read_text())
    assert plain["run_dir"] == "runs/r"
    assert plain["ingest"]["sources"][0]["path"] == "../pages.jsonl"
    far = str(project / "pages.jsonl")
    assert main(["init", "deep/f.yaml", far, "--tokenizer", "400"]) == 0
    plain = yaml.safe_load((project / "deep/f.yaml").read_text())
    assert plain["ingest"]["sources"][0]["path"] == far


def test_a_recipe_is_one_variant_from_everywhere_and_after_a_move(project, monkeypatch):
    assert main(["run", "my.yaml", *SHORT]) == 0
    run = project / "runs/my"
    folders = sorted(path.name for path in run.glob("[0-9][0-9]-*"))
    monkeypatch.chdir(project.parent)
    assert main(["run", "project/my.yaml", *SHORT]) == 0
    assert main(["run", str(project / "my.yaml"), *SHORT]) == 0
    (name,) = variant_records.names(run)
    # The recorded recipe is that of the variant, from wherever it is run.
    assert main(["run", f"project/runs/my/variants/{name}.yaml"]) == 0
    assert variant_records.names(run) == [name]
    moved = project.rename(project.with_name("moved"))
    os.utime(moved / "pages.jsonl", (5, 5))
    assert main(["run", "moved/my.yaml", *SHORT]) == 0
    run = moved / "runs/my"
    assert variant_records.names(run) == [name]
    assert sorted(path.name for path in run.glob("[0-9][0-9]-*")) == folders
