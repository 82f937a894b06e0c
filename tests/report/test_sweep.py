"""A grid of recipes in one run directory: what is asked, what is shared, what is written, what fails."""

import csv
import io
import json
import shutil

import pytest
from rich.console import Console
from tests.support.killed import kill_forked_at

import nextlong
from nextlong.cli import main as cli_main
from nextlong.errors import RecipeError
from nextlong.recipe import Recipe
from nextlong.report import sweep
from nextlong.runs.statistics.measure import measure

OVER = [
    "--over",
    "compose.position=head,tail",
    "--over",
    "compose.target_tokens=512,1024",
]
NAMES = [
    "512-tokens",
    "base",
    "512-tokens-position-tail",
    "position-tail",
]  # base: as the recipe has it
GRID = [(position, tokens) for position in ("head", "tail") for tokens in (512, 1024)]


@pytest.fixture
def recipe(few_recipe, own_few_run, tmp_path):
    """A recipe file whose run directory holds a finished run."""
    path = tmp_path / "my.yaml"
    path.write_text(few_recipe(own_few_run).dump(), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def swept(few_recipe, few_run, tmp_path_factory):
    """The folder of a finished sweep with its CSV and JSON."""
    folder = tmp_path_factory.mktemp("swept")
    shutil.copytree(few_run, folder / "run")
    (folder / "my.yaml").write_text(few_recipe(folder / "run").dump(), encoding="utf-8")
    files = ["--csv", str(folder / "s.csv"), "--json", str(folder / "s.json")]
    assert cli_main.main(["sweep", str(folder / "my.yaml"), *OVER, *files]) == 0
    return folder


def variants_of(run_dir):
    return {path.stem for path in (run_dir / "variants").glob("*.json")}


def call(capsys, *arguments):
    capsys.readouterr()
    code = cli_main.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out, err


# what is asked


def test_values_are_yaml_in_the_order_given(recipe):
    found = sweep.variants(
        recipe, ["compose.separator=' ','1,2',x", "encoder.model=lsa,openai:m"]
    )
    assert [tuple(variant.settings.values()) for variant in found] == [
        (separator, model)
        for separator in (" ", "1,2", "x")
        for model in ("lsa", "openai:m")
    ]
    numbers = sweep.variants(recipe, ["ingest.sources.0.max_chars=900,null"])
    assert [variant.settings["ingest.sources.0.max_chars"] for variant in numbers] == [
        900,
        None,
    ]


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ("chunk.max_chars", "KEY=V1,V2"),
        ("chunk.max_chars=", "KEY=V1,V2"),
        ("=1,2", "KEY=V1,V2"),
        ("a=[1,2", "YAML"),
        ("a=1,2,1", "value 1"),
    ],
)
def test_an_axis_that_is_none(asked, problem, tmp_path):
    with pytest.raises(RecipeError) as error:
        sweep.variants(tmp_path / "none.yaml", [asked])
    assert error.value.where == f"--over {asked!r}"
    assert problem in error.value.problem


def test_every_combination_the_last_key_fastest(recipe):
    found = sweep.variants(recipe, OVER[1::2], overrides=["compose.sequences=3"])
    assert [variant.name for variant in found] == [
        "512-tokens-sequences-3", "sequences-3",
        "512-tokens-sequences-3-position-tail", "sequences-3-position-tail",
    ]  # fmt: skip
    assert [(own.recipe.compose.position, own.recipe.compose.target_tokens) for own in found] == [
        ("head", 512), ("head", 1024), ("tail", 512), ("tail", 1024),
    ]  # fmt: skip
    assert {variant.recipe.compose.sequences for variant in found} == {3}


def test_names_keep_whole_keys_where_their_ends_are_alike_and_fit_a_file_name(recipe):
    over = [
        "ingest.sources.0.max_chars=900",
        "chunk.max_chars=300",
        'compose.separator="/ \\n"',
    ]
    (variant,) = sweep.variants(recipe, over)
    assert variant.name.startswith(
        "ingest.sources.0.max_chars-900-chunk.max_chars-300-"
    )
    assert len(variant.name) <= 60
    assert variant.recipe.compose.separator == "/ \n"


def ahead(variants):
    """Return the cells after its name of each variant, and what is said below them."""
    file = io.StringIO()
    sweep.show_ahead(variants, Console(file=file))
    _, *lines = file.getvalue().splitlines()
    return [line.split()[-4:] for line in lines[: len(variants)]], lines[
        len(variants) :
    ]


def test_what_will_run_is_counted_before_it_does(recipe, own_few_run, tmp_path):
    cells, (error,) = ahead(
        sweep.variants(recipe, [f"ingest.sources.0.path={tmp_path / 'none'}"])
    )
    assert cells == [["–"] * 4]
    assert str(tmp_path / "none") in error
    seeds = sweep.variants(recipe, ["compose.seed=1", "compose.position=head,tail"])
    cells, said = ahead([*seeds, seeds[0]])
    assert not said
    first, second, again = (
        [int(cell) for cell in row] for row in cells
    )  # steps, done, shared, to do
    assert first[1] > 0 < first[3]
    assert (first[2], second[1]) == (0, first[1])
    assert 0 < second[3] < first[3]
    assert second[2] == first[3] - second[3]
    assert again[2:] == [first[3], 0]
    assert len(list(own_few_run.glob("*/manifest.json"))) == len(
        list(own_few_run.glob("[0-9]*"))
    )  # nothing ran


def test_inputs_are_recognised_once_for_all_variants(recipe, monkeypatch):
    recognised, asked = sweep.recognise_inputs, []

    def counted(sources, *given, tell, **more):
        asked.append(sources)
        tell("looked")
        return recognised(sources, *given, tell=tell, **more)

    monkeypatch.setattr(sweep, "recognise_inputs", counted)
    file = io.StringIO()
    sweep.show_ahead(sweep.variants(recipe, ["compose.seed=1,2,3"]), Console(file=file))
    assert (len(asked), file.getvalue().count("looked")) == (1, 1)


@pytest.mark.parametrize(
    ("over", "message"),
    [
        (["compose.position=head,middle"], "--over compose.position=middle: "),
        (["compose.positon=head"], "did you mean 'compose.position'?"),
        (["run_dir=a,b"], "--over run_dir: "),
        (["compose.seed=1", "compose.seed=2"], "--over compose.seed: "),
        (["compose.target_tokens=1024,1k"], "are the same variant"),
    ],
)
def test_a_grid_that_is_none_runs_nothing(
    recipe, own_few_run, hashes_of, capsys, over, message
):
    before = hashes_of(own_few_run)
    code, out, err = call(
        capsys, "sweep", recipe, *(part for one in over for part in ("--over", one))
    )
    assert (code, out) == (2, "")
    assert message in err
    assert hashes_of(own_few_run) == before


def test_a_mistake_of_the_file_itself_is_told_once(recipe, capsys):
    recipe.write_text(recipe.read_text() + "tea: green\n")
    code, _, err = call(capsys, "sweep", recipe, *OVER)
    assert code == 2
    assert err.count("unknown key 'tea'") == 1


# what comes of it


def test_common_steps_are_shared(swept):
    folders = [path.name for path in (swept / "run").glob("[0-9]*")]
    made = {
        name: sum(f"-{name}-" in folder for folder in folders)
        for name in ("embed", "mine", "draft", "compose")
    }
    assert made == {"embed": 1, "mine": 1, "draft": 2, "compose": 4}


def test_every_variant_is_a_variant_that_opens(swept):
    assert variants_of(swept / "run") == set(NAMES)
    for name, settings in zip(NAMES, GRID, strict=True):
        run = nextlong.open(f"{swept}/run@{name}")
        assert run.path == swept / "run"
        assert (
            run.recipe.compose.position,
            run.recipe.compose.target_tokens,
        ) == settings
        assert {len(sequence.input_ids) for sequence in run.sequences()} == {
            run.recipe.compose.target_tokens
        }
        card = (run.data / "README.md").read_text("utf-8")
        assert (
            f"{len(run)} sequences of {run.recipe.compose.target_tokens:,} tokens"
            in card
        )
        assert f"position: {run.recipe.compose.position}" in card


def test_the_run_directory_stays_the_run_that_it_was(swept, few_run):
    before, run = nextlong.open(few_run), nextlong.open(swept / "run")
    assert (run.variant.name, run.variant.made) == (
        before.variant.name,
        before.variant.made,
    )
    assert run.variant.steps.items() >= before.variant.steps.items()
    assert [sequence.id for sequence in run.sequences()] == [
        sequence.id for sequence in before.sequences()
    ]


def test_csv_and_json_say_what_stats_says(swept):
    rows = list(csv.DictReader((swept / "s.csv").read_text("utf-8").splitlines()))
    plain = json.loads((swept / "s.json").read_text("utf-8"))
    assert (
        [row["variant"] for row in rows] == [one["variant"] for one in plain] == NAMES
    )
    for row, one in zip(rows, plain, strict=True):
        measured = measure(nextlong.open(f"{swept}/run@{one['variant']}"))
        assert one["stats"] == json.loads(json.dumps(measured.as_json()))
        assert float(row["cosine_mean"]) == measured.similarity.cosine.mean
        assert (
            row["compose.position"]
            == one["settings"]["compose.position"]
            == measured.setting.position
        )
        assert (row["error"], one["error"]) == ("", None)


def test_variants_can_be_compared(swept, capsys):
    code, out, _ = call(
        capsys, "compare", *(f"{swept}/run@{name}" for name in NAMES[::2])
    )
    assert code == 0
    assert call(capsys, "compare", f"{swept}/run@512-tokens*") == (0, out, "")
    same, _, *lines = out.splitlines()
    assert "; target tokens 512; " in same
    assert lines[0].split() == ["512-tokens", "512-tokens-position-tail"]
    assert ["position", "head", "tail"] in [line.split() for line in lines]


def test_again_tells_the_variants_first_and_does_no_new_work(swept, hashes_of, capsys):
    before = hashes_of(swept / "run")
    code, out, err = call(capsys, "sweep", swept / "my.yaml", *OVER)
    assert code == 0
    told = err.splitlines()
    assert told[0].split() == ["variant", "steps", "done", "shared", "to", "do"]
    assert [line.split()[0] for line in told[1:5]] == NAMES
    assert told[5] == f"1 of 4 variants: {NAMES[0]}"
    compared = call(capsys, "compare", *(f"{swept}/run@{name}" for name in NAMES))
    assert compared == (0, out, "")
    runs = " ".join(f"{swept}/run@{name}" for name in NAMES)
    assert told[-2].endswith(f" nextlong report {runs}")
    assert told[-1].endswith(f" nextlong compare {runs}")
    assert "done in" not in err
    assert hashes_of(swept / "run") == before


def test_a_variant_that_fails_leaves_the_others(recipe, own_few_run, tmp_path, capsys):
    over = ["--over", "compose.min_meta_chunks=2,9999,1", "--csv", tmp_path / "s.csv"]
    code, out, err = call(capsys, "sweep", recipe, *over)
    assert code == 2
    assert "1 of 3 variants failed" in err
    (failure,) = [
        line for line in out.splitlines() if line.startswith("min_meta_chunks-9999: ")
    ]
    assert "compose.min_meta_chunks=9999 is" in failure
    assert variants_of(own_few_run) == {"base", "min_meta_chunks-1"}
    rows = list(csv.DictReader((tmp_path / "s.csv").read_text("utf-8").splitlines()))
    assert [bool(row["error"]) for row in rows] == [False, True, False]
    assert rows[1]["tokens"] == ""


def test_killed_and_asked_again_goes_on_to_the_same_bytes(
    few_recipe, few_run, started, swept, hashes_of, tmp_path
):
    path = tmp_path / "my.yaml"
    path.write_text(
        few_recipe(started(tmp_path / "run", few_run)).dump(), encoding="utf-8"
    )
    arguments, names = ["sweep", str(path), *OVER[:2]], ("base", "position-tail")
    kill_forked_at(arguments, f"*/variants/{names[1]}.json")
    assert names[1] not in variants_of(tmp_path / "run")
    assert nextlong.open(tmp_path / "run").variant.name == "base"
    assert cli_main.main(arguments) == 0
    made, expected = (hashes_of(run) for run in (tmp_path / "run", swept / "run"))
    assert set(made.items()) <= set(expected.items())
    for name in names:
        ours, theirs = (
            nextlong.open(f"{run}@{name}") for run in (tmp_path / "run", swept / "run")
        )
        assert ours.recipe.model_copy(
            update={"run_dir": ""}
        ) == theirs.recipe.model_copy(update={"run_dir": ""})
        assert [done.folder.name for done in ours.steps.values()] == [
            done.folder.name for done in theirs.steps.values()
        ]


def test_a_recipe_loads_its_variants_values_as_they_were_meant(recipe):
    (variant,) = sweep.variants(recipe, ["tokenizer.eos='yes'"])
    assert variant.recipe.tokenizer.eos == "yes"
    assert isinstance(variant.recipe, Recipe)
