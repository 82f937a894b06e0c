"""Results: `results.json` of experiments → `results.md` and its figures as SVG.

Every number on the page is computed from the JSON files; the page is the same to the byte when it is written again.
Hypotheses were written before the runs; each is followed by what a paired t-test over the seeds says about it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final, NamedTuple

from nextlong.engine import store
from nextlong.errors import RunError
from nextlong.evaluate.report.figures import drawn, style
from nextlong.evaluate.report.show import as_markdown
from nextlong.evaluate.report.tables import MeanStd, ScoreTable
from nextlong.replicate.documents import NAMES as FACT_NAMES
from nextlong.replicate.documents import VALUES as TYPICAL
from nextlong.replicate.documents import Documents
from nextlong.replicate.invented import FACTS, NAMES, PARAGRAPH_TOKENS, TOPICS, VALUES
from nextlong.replicate.recipe import CRITERION_NEGATIVES, recipe_from
from nextlong.text import Json

PAGE: Final = "results.md"
FOLDER: Final = "results"
_KINDS: Final = {
    "invented": {"hard": "hard negatives (same topic)", "random": "random negatives (other topics)"},
    "documents": {"hard": "hard negatives (same input document)", "random": "random negatives (other documents)"},
}


class Hypothesis(NamedTuple):
    """A claim: `ours` recalls more than each of `theirs` across many negatives of a kind."""

    text: str
    kind: str
    ours: str
    theirs: tuple[str, ...]


# Each was written before the arms that it is about were run; not to be changed afterwards.
HYPOTHESES: Final = (
    Hypothesis(
        "Across hard negatives, hard negatives teach more than random ones.", "hard", "nextlong", ("random negatives",)
    ),
    Hypothesis(
        "Across hard negatives, random negatives teach more than whole similar documents.",
        "hard",
        "random negatives",
        ("quest", "knn", "iclm", "splice"),
    ),
    Hypothesis(
        "Across hard negatives, NExtLong teaches more than the standard method.", "hard", "nextlong", ("standard",)
    ),
    Hypothesis(
        "Across random negatives, random negatives teach at least as much as hard ones.",
        "random",
        "random negatives",
        ("nextlong",),
    ),
    Hypothesis(
        "Across random negatives, NExtLong teaches more than the standard method.", "random", "nextlong", ("standard",)
    ),
    Hypothesis(
        "Half of the tokens in short rows beat none, across hard negatives.",
        "hard",
        "nextlong",
        ("nextlong, no replay",),
    ),
    Hypothesis(
        "Gaps of mixed lengths beat the longest alone, across hard negatives.",
        "hard",
        "nextlong",
        ("nextlong, 2K only",),
    ),
    Hypothesis(
        "Chunks of one paragraph beat chunks of two, across hard negatives.",
        "hard",
        "nextlong",
        ("nextlong, chunks of 2 paragraphs",),
    ),
    Hypothesis(
        "Self-repeat teaches less than hard negatives, across hard negatives.", "hard", "nextlong", ("self-repeat",)
    ),
    Hypothesis(
        "Self-repeat teaches copying only: across hard negatives, random ones teach more.",
        "hard",
        "random negatives",
        ("self-repeat",),
    ),
    Hypothesis("Across hard negatives, knn teaches more than the standard method.", "hard", "knn", ("standard",)),
    Hypothesis("Across hard negatives, iclm teaches more than the standard method.", "hard", "iclm", ("standard",)),
    Hypothesis(
        "Across hard negatives, NExtLong teaches more than natural long documents.",
        "hard",
        "nextlong",
        ("long documents",),
    ),
    Hypothesis(
        "Across random negatives, NExtLong teaches more than natural long documents.",
        "random",
        "nextlong",
        ("long documents",),
    ),
    Hypothesis(
        "Without replay too, hard negatives teach more than random ones across hard negatives.",
        "hard",
        "nextlong, no replay",
        ("random negatives, no replay",),
    ),
    Hypothesis(
        "Without replay, random negatives teach at least as much as hard ones across random negatives.",
        "random",
        "random negatives, no replay",
        ("nextlong, no replay",),
    ),
)


# On real text: written once the page had the results of the invented corpus, before any arm was trained on real text.
HYPOTHESES_ON_REAL_TEXT: Final = (
    Hypothesis(
        "Across hard negatives, NExtLong teaches more than methods of whole documents.",
        "hard",
        "nextlong",
        ("standard", "quest", "knn", "iclm"),
    ),
    Hypothesis(
        "Across random negatives, NExtLong teaches more than methods of whole documents.",
        "random",
        "nextlong",
        ("standard", "quest", "knn", "iclm"),
    ),
    Hypothesis(
        "Across hard negatives, hard negatives teach more than random ones.", "hard", "nextlong", ("random negatives",)
    ),
    Hypothesis(
        "Across random negatives too, hard negatives teach more than random ones.",
        "random",
        "nextlong",
        ("random negatives",),
    ),
    Hypothesis(
        "Across hard negatives, NExtLong teaches more than short rows alone.", "hard", "nextlong", ("short rows only",)
    ),
    Hypothesis(
        "Across hard negatives, the standard method teaches more than short rows alone.",
        "hard",
        "standard",
        ("short rows only",),
    ),
)


class Results:
    """The finished models of an experiment, those seeds only for which every arm is finished."""

    def __init__(self, results: Json, *, origin: str) -> None:
        self.json = results
        self.recipe = results["recipe"]
        self.is_invented = self.recipe["corpus"]["kind"] == "invented"
        self.kinds = _KINDS["invented" if self.is_invented else "documents"]
        self.negative_tokens = (
            PARAGRAPH_TOKENS if self.is_invented else Documents(**self.recipe["corpus"]).negative_tokens
        )
        self.arms = ["base", *self.recipe["arms"]]
        done: dict[tuple[str, int], Json] = {(model["arm"], model["seed"]): model for model in results["models"]}
        self.seeds = [seed for seed in self.recipe["seeds"] if all((arm, seed) in done for arm in self.arms)]
        if not self.seeds:
            raise RunError(f"{origin}: no seed is finished for every arm; resume the experiment")
        self._models = done

    def models(self, arm: str) -> list[Json]:
        """Return the models of an arm, by seed; a base model that all seeds share once."""
        is_shared = arm == "base" and self.recipe["pretrain"]["models"] == "one"
        return [self._models[arm, seed] for seed in (self.seeds[:1] if is_shared else self.seeds)]

    def recall(self, arm: str, kind: str, negatives: int) -> list[float]:
        """Return the percentages recalled, by seed."""
        return [float(model["measured"]["recall"][kind][str(negatives)]) for model in self.models(arm)]

    @property
    def name(self) -> str:
        """The preset, which the files are named after."""
        return str(self.recipe["preset"])

    @property
    def negatives(self) -> list[int]:
        """Numbers of negatives that recall was measured across."""
        return sorted(self.recipe["measure"]["negatives"])

    @property
    def many(self) -> list[int]:
        """The numbers of negatives that a short row cannot hold: those that the hypotheses are about."""
        return [count for count in self.negatives if count * self.negative_tokens > self.recipe["pretrain"]["tokens"]]

    @property
    def few(self) -> list[int]:
        """The numbers of negatives that a short row holds, without those that ended the training of the base model."""
        return [count for count in self.negatives if CRITERION_NEGATIVES < count < self.many[0]]

    def mean_recall(self, arm: str, kind: str, counts: Sequence[int]) -> list[float]:
        """Return the mean recall across some numbers of negatives, by seed."""
        columns = [self.recall(arm, kind, count) for count in counts]
        return [fmean(values) for values in zip(*columns, strict=True)]


def difference(ours: Sequence[float], theirs: Sequence[float]) -> MeanStd:
    """Return the mean difference of the same seeds and its standard error."""
    each = [one - other for one, other in zip(ours, theirs, strict=True)]
    return MeanStd(fmean(each), stdev(each) / sqrt(len(each)) if len(each) > 1 else None)


def is_decided(gap: MeanStd, *, seeds: int) -> bool:
    """Return whether a mean difference is beyond chance: a paired t-test over the seeds, 95 %, two-sided."""
    from scipy.stats import t

    if gap.deviation is None:
        return False
    return abs(gap.mean) > float(t.ppf(0.975, seeds - 1)) * gap.deviation


def interval(values: Sequence[float]) -> MeanStd:
    """Return the mean and half the width of its 95 % interval over seeds (t distribution)."""
    from scipy.stats import t

    if len(values) < 2:
        return MeanStd(fmean(values), None)
    return MeanStd(fmean(values), float(t.ppf(0.975, len(values) - 1)) * stdev(values) / sqrt(len(values)))


def write(sources: Sequence[Path], folder: Path) -> list[Path]:
    """Write `results.md`, and `results/` with the JSON files and the figures, into a folder; return what was written."""
    parts: dict[str, Json] = {}
    for source in sources:
        read = store.read_json(source)
        name = read["recipe"]["preset"]
        parts[name] = joined(parts[name], read, origin=str(source)) if name in parts else read
    results = [Results(part, origin=name) for name, part in parts.items()]
    files = {PAGE: page(results)}
    files |= {f"{FOLDER}/{one.name}-{name}.svg": svg for one in results for name, svg in _figures(one)}
    with store.explained(folder):
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        for one in results:
            store.write_json(folder / FOLDER / f"{one.name}.json", one.json)
        for name, text in files.items():
            store.write_text(folder / name, text)
    return [folder / name for name in (*files, *(f"{FOLDER}/{one.name}.json" for one in results))]


def joined(one: Json, other: Json, *, origin: str) -> Json:
    """Return two parts of one experiment, whose recipes differ in arms and seeds alone, as one.

    Raises RunError if anything else of the recipes or the corpora differ, or if the models that both have are not the same.
    """
    recipes = [{**part["recipe"], "arms": None, "seeds": None, "corpus made": part["corpus"]} for part in (one, other)]
    if differing := [key for key in recipes[0] if recipes[0][key] != recipes[1].get(key)]:
        raise RunError(f"{origin}: its {differing[0]} differs from that of the results before it; report them apart")
    models, again = ({(model["arm"], model["seed"]): model for model in part["models"]} for part in (one, other))
    common = models.keys() & again.keys()
    if not common or any(models[key]["sha256"] != again[key]["sha256"] for key in common):
        raise RunError(f"{origin}: its models are not those of the results before it (by SHA-256); report them apart")
    both = {key: [*dict.fromkeys([*one["recipe"][key], *other["recipe"][key]])] for key in ("arms", "seeds")}
    added = [arm for arm in other["recipe"]["arms"] if arm not in one["recipe"]["arms"]]
    later = [*one.get("later", []), {"arms": added, "same": len(common)}]
    return {**one, "recipe": {**one["recipe"], **both}, "models": [*{**again, **models}.values()], "later": later}


def page(results: Sequence[Results]) -> str:
    """Return the page as Markdown: the experiments one after the other."""
    parts = ["# Results: does it work?\n", *map(_experiment, results)]
    return "\n".join(parts)


def _experiment(results: Results) -> str:
    titles = {
        "recall-hard": "Recall by the number of hard negatives",
        "recall-random": "Recall by the number of random negatives",
        "loss": "Loss by position",
        "attention": "Attention on the first and last third",
    }
    shown = "\n\n".join(f"![{title}]({FOLDER}/{results.name}-{name}.svg)" for name, title in titles.items())
    about = _INVENTED if results.is_invented else _DOCUMENTS
    lead = [*about, _setup(results), "### Hypotheses", *_verdicts(results), "### Figures", shown]
    tables = as_markdown(list(_tables(results)), lead=lead).replace("\n## ", "\n### ")
    return "\n\n".join([tables.rstrip(), *_commands(results)]) + "\n"


_INVENTED: Final = (
    "## The mechanism, on an invented corpus",
    "A controlled experiment on an invented corpus where the truth is known: "
    "`nextlong replicate --preset mechanism`. Small models, synthetic text: it shows the mechanism, not a benchmark score, "
    "and says nothing about models of other sizes.",
)
_DOCUMENTS: Final = (
    "## Real text",
    "The same experiment on real documents into which facts are inserted: `nextlong replicate --preset cpu-night`. Small models: "
    "it shows what models of this size learn from each method, not a benchmark score.",
)


def _setup(results: Results) -> str:
    recipe, base = results.recipe, results.models("base")
    model, extend, measure, pretrain = (recipe[key] for key in ("model", "extend", "measure", "pretrain"))
    legs = [model["legs"] for model in base]
    leg = pretrain["tokens_per_step"] * pretrain["steps"] / 1e6
    seeds = f"{len(results.seeds)} of the recipe's {len(recipe['seeds'])} are shown ({_listed(results.seeds)})"
    is_each = pretrain["models"] == "seed"
    corpus, echoes, tokens, probe, limits = _invented(recipe) if results.is_invented else _documents(recipe)
    return "\n".join(
        [
            f"- **Corpus**: {corpus}",
            f"- **Model**: Llama, {model['layers']} layers of width {model['hidden_size']}, {model['heads']} heads, "
            f"{tokens}, float32, trained by `nextlong train`'s loop on one thread. Queries and keys have biases; in the "
            "first layer those of one head start at values that make it look one token back, which spares most of the training "
            "that retrieval needs to form.",
            f"- **Base model**: one {'a seed' if is_each else 'for all seeds'}, on rows of {pretrain['echo_tokens']} tokens of "
            f"{echoes} repeated verbatim, then on rows of {pretrain['tokens']}, half of them documents and half such "
            f"repetitions, until it recalls {100 * pretrain['recall']:.0f} % of the values across two hard negatives: "
            f"{_listed(dict.fromkeys(f'{count * leg:.1f}' for count in sorted(legs)))} million tokens.",
            f"- **Arms**: each extends the base model by {extend['steps'] * extend['tokens_per_step']:,} tokens in packed rows of "
            f"{extend['row_tokens']:,}: sequences of {_listed(extend['lengths'])} tokens in equal shares and, where not stated "
            f"otherwise, {100 * extend['replay']:.0f} % short rows (replay). Ordinary runs (`nextlong.run`) make all sequences.",
            f"- **Recall**: {probe} A value is recalled if it is the likeliest of all tokens. {measure['probes']} probes of "
            f"{FACTS} values for each *n*.",
            "- **Loss by position**: held-out documents concatenated at random, nats a token. **Attention**: from the tokens that "
            f"predict a value across {max(results.negatives)} negatives, mean over heads and layers.",
            f"- **Seeds**: {seeds}: of {'weights and ' if is_each else ''}the order of rows. "
            "Corpus and sequences were sampled once. A seed is left out, before any arm is trained, if its base model does not "
            f"reach that recall within {pretrain['most_legs'] * leg:.1f} million tokens. "
            "± is half of a 95 % interval over seeds.",
            f"- **Limits**: {limits}",
        ]
    )


def _invented(recipe: Json) -> tuple[str, str, str, str, str]:
    """Return what the setup says about the invented corpus: documents, echoes, tokens, probes, limits."""
    return (
        f"{recipe['corpus']['documents']:,} documents of {TOPICS} topics. The first paragraph states {FACTS} facts "
        f"(`name value .`); each of 3 to 7 later paragraphs restates {FACTS}, drawn with replacement, among words of the "
        f"topic. Names are drawn from all {NAMES}, values from the {VALUES} of the topic, so documents of one topic are hard "
        "negatives of each other: only the name tells which value is meant.",
        "random words",
        "a token a word",
        "the first paragraph of a new document, *n* paragraphs of other documents (negatives, about "
        f"{PARAGRAPH_TOKENS} tokens each), then each of its facts again. A guess among the values of the topic is right in "
        f"{100 / VALUES:.0f} %. No arm trains on this form.",
        "one size, one invented corpus, few tokens. Where recall is near that of a guess, differences are noise. "
        "Designs of the corpus with which no retrieval formed in the base model were discarded before any arm was compared. A "
        "first run of the experiment gave each arm a twentieth of the preset's tokens and left most hypotheses undecided; the "
        "tokens were raised once, and the hypotheses stayed as they were.",
    )


def _documents(recipe: Json) -> tuple[str, str, str, str, str]:
    """Return what the setup says about real documents: documents, echoes, tokens, probes, limits."""
    corpus = recipe["corpus"]
    names = _listed(source["name"] or Path(source["path"]).name for source in corpus["sources"])
    made = Documents(**corpus)
    return (
        f"the documents of {names}, {100 * corpus['held_out']:.0f} % of them held out, cut into short documents of 3 to 6 "
        f"paragraphs with {FACTS} facts (`NAME value.`) among their words. The first paragraph states each fact once, later ones "
        f"restate {FACTS}, drawn with replacement, one behind every {corpus['fact_every_words']} words on average. Names are "
        f"drawn from {len(FACT_NAMES)} invented words, values from the {TYPICAL} words most typical of the input document. "
        "Every method makes its sequences from these same short documents.",
        "random words",
        f"a BPE of {corpus['vocabulary']:,} entries trained on the corpus, and a token a name",
        f"a paragraph of held-out text that states {FACTS} new facts, *n* paragraphs of held-out text with facts of other names "
        f"(negatives, about {made.negative_tokens} tokens each; hard ones are of the same input document and share its values, "
        "random ones of others), then a paragraph that states the first facts again. A guess among the values of the document is "
        f"right in {100 / TYPICAL:.0f} %.",
        "one size, one corpus, few tokens. Facts are inserted into the text, and the base model and the replay hold the same "
        "form within short rows. Methods of whole documents put no other text between two paragraphs of one, so their rows ask for "
        "no fact beyond the length of a document, and a row of NExtLong is built like a probe. This says which sequences "
        "extend retrieval to longer distances among real text, not whether "
        "facts told in prose are found. Where recall is near that of a guess, differences are noise. Before any arm was trained, "
        "designs of the corpus with which no retrieval formed were discarded (docs/decisions/0022).",
    )


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))


def _verdicts(results: Results) -> Iterator[str]:
    yield (
        f"Each was written before its arms were run, about the mean recall across {_listed(results.many)} negatives, which no "
        "short row holds. "
        "Paired t-test over the seeds, 95 %, two-sided, not corrected for the number of tests."
    )
    yield "\n".join(_tested(results, results.many))
    if results.few:
        yield (
            f"Not planned: the same claims tested across {_listed(results.few)} negatives, which a short row could hold. Read "
            "these as suggestions for another experiment."
        )
        yield "\n".join(_tested(results, results.few))


def _tested(results: Results, counts: Sequence[int]) -> Iterator[str]:
    for claim in HYPOTHESES if results.is_invented else HYPOTHESES_ON_REAL_TEXT:
        for other in claim.theirs:
            if claim.ours in results.arms and other in results.arms:
                yield f"- {claim.text} **{_verdict(results, claim, other, counts)}**"


def _verdict(results: Results, claim: Hypothesis, other: str, counts: Sequence[int]) -> str:
    ours, theirs = (results.mean_recall(arm, claim.kind, counts) for arm in (claim.ours, other))
    gap = difference(ours, theirs)
    said = f"{claim.ours} {fmean(ours):.1f} %, {other} {fmean(theirs):.1f} %: {gap.mean:+.1f} points"
    if gap.deviation is None:
        return f"One seed, so not tested ({said})."
    if not is_decided(gap, seeds=len(results.seeds)):
        return f"Not decided ({said}, standard error {gap.deviation:.1f})."
    return f"{'Holds' if gap.mean > 0 else 'Fails, the opposite holds'} ({said}, standard error {gap.deviation:.1f})."


def _tables(results: Results) -> Iterator[ScoreTable]:
    for kind, words in results.kinds.items():
        rows = tuple(
            (arm, tuple(interval(results.recall(arm, kind, count)) for count in results.negatives))
            for arm in results.arms
        )
        about = "Percent of values recalled, by the number of negatives between a fact and its question."
        yield ScoreTable(f"Recall across {words}", about, tuple(map(str, results.negatives)), rows, rows_are="parts")
    bins = list(results.models("base")[0]["measured"]["loss"])
    losses = tuple(
        (arm, tuple(interval([m["measured"]["loss"][part] for m in results.models(arm)]) for part in bins))
        for arm in results.arms
    )
    yield ScoreTable("Loss by position", "Nats a token, up to this position.", tuple(bins), losses, rows_are="parts")
    cells = [(kind, third) for kind in results.kinds for third in ("first", "last")]
    attention = tuple(
        (
            arm,
            tuple(interval([m["measured"]["attention"][k][third] for m in results.models(arm)]) for k, third in cells),
        )
        for arm in results.arms
    )
    titles = tuple(f"{third} third, {kind} negatives" for kind, third in cells)
    about = (
        "Percent of the attention. The facts are in the first third, the questions before the asked one in the last."
    )
    yield ScoreTable("Attention by thirds", about, titles, attention, rows_are="parts")
    cost = tuple(
        (
            arm,
            (
                f"{fmean(m['tokens'] for m in results.models(arm)):,.0f}",
                f"{fmean(m['seconds'] for m in results.models(arm)):,.0f}",
                fmean(m["loss"] for m in results.models(arm)),
            ),
        )
        for arm in results.arms
    )
    about = (
        "Means over seeds. Base: the last leg only. Seconds: of the training steps, on one thread of a shared machine."
    )
    yield ScoreTable("Cost", about, ("Tokens", "Seconds", "Training loss at the end"), cost, rows_are="parts")


def _figures(results: Results) -> Iterator[tuple[str, str]]:
    drawings = {
        "recall-hard": partial(_draw_recall, results=results, kind="hard"),
        "recall-random": partial(_draw_recall, results=results, kind="random"),
        "loss": partial(_draw_loss, results=results),
        "attention": partial(_draw_attention, results=results),
    }
    for name, draw in drawings.items():
        made = drawn(draw)
        assert made is not None, "each of these has something to draw"
        yield name, made[0] + "\n"


def _line(axes: Any, places: Sequence[float], spreads: Sequence[MeanStd], name: str, number: int) -> None:
    errors = [spread.deviation or 0.0 for spread in spreads]
    axes.errorbar(
        places,
        [spread.mean for spread in spreads],
        yerr=errors,
        label=name,
        elinewidth=0.8,
        capsize=2,
        **style(number),
        linestyle="-" if number < 7 else "--",
    )


def _draw_recall(figure: Any, *, results: Results, kind: str) -> bool:
    axes = figure.subplots()
    for number, arm in enumerate(results.arms):
        spreads = [interval(results.recall(arm, kind, count)) for count in results.negatives]
        _line(axes, [count + number * 0.12 for count in results.negatives], spreads, arm, number)
    axes.set_xscale("symlog", base=2, linthresh=2)
    axes.set_xticks(results.negatives, list(map(str, results.negatives)))
    axes.minorticks_off()
    axes.set(xlabel=results.kinds[kind], ylabel="recalled, percent", ylim=(0, 102))
    figure.legend(loc="outside right upper", fontsize=7)
    return True


def _draw_loss(figure: Any, *, results: Results) -> bool:
    axes = figure.subplots()
    bins = list(results.models("base")[0]["measured"]["loss"])
    for number, arm in enumerate(results.arms):
        spreads = [interval([m["measured"]["loss"][part] for m in results.models(arm)]) for part in bins]
        _line(axes, list(range(len(bins))), spreads, arm, number)
    axes.set_xticks(range(len(bins)), [f"to {part}" for part in bins])
    axes.set(xlabel="position in the row, tokens", ylabel="loss, nats a token")
    figure.legend(loc="outside right upper", fontsize=7)
    return True


def _draw_attention(figure: Any, *, results: Results) -> bool:
    axes = figure.subplots()
    for offset, third in enumerate(("first", "last")):
        spreads = [
            interval([m["measured"]["attention"]["hard"][third] for m in results.models(arm)]) for arm in results.arms
        ]
        places = [place + 0.4 * offset for place in range(len(results.arms))]
        errors = [spread.deviation or 0.0 for spread in spreads]
        color = style(offset)["color"]
        axes.barh(places, [spread.mean for spread in spreads], 0.38, xerr=errors, label=f"{third} third", color=color)
    axes.set_yticks([place + 0.2 for place in range(len(results.arms))], results.arms, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("percent of the attention, across hard negatives")
    axes.legend(fontsize=8)
    return True


def _commands(results: Results) -> Iterator[str]:
    yield "### How to repeat it"
    corpus = "".join(f" \\\n      --corpus {source['path']}" for source in results.recipe["corpus"].get("sources", ()))
    settings = "".join(f" \\\n      --set {shlex.quote(one)}" for one in _settings(results.recipe))
    yield (
        f"    nextlong replicate --preset {results.name} --out OUT{corpus}{settings}\n"
        "    nextlong replicate report OUT/results.json --to docs"
    )
    if settings:
        yield "The settings are what differs from the preset; without them the command trains more."
    models = {model["sha256"]: model for model in results.json["models"]}  # a base model that seeds share, once
    seconds = sum(model["seconds"] for model in models.values())
    for part in results.json.get("later", []):
        yield (
            f"Trained in a later session than the other arms: {_listed(part['arms'])}. {part['same']} models were trained again "
            "there, and their weights have the same SHA-256."
        )
    yield (
        f"Made by nextlong {results.json['version']}, corpus {results.json['corpus']}; {len(models)} models, "
        f"{seconds / 60:.0f} minutes of training steps on one thread each. The recipe, the measurements and the SHA-256 of each "
        f"model's weights are in [{results.name}.json]({FOLDER}/{results.name}.json), from which this page is generated."
    )


def _settings(recipe: Json) -> Iterator[str]:
    """Yield what differs from the preset, as `--set` takes it."""
    usual = recipe_from(recipe["preset"], out="OUT").model_dump(mode="json")
    for key, value in recipe.items():
        if isinstance(value, dict):
            yield from (
                f"{key}.{name}={json.dumps(one)}"
                for name, one in value.items()
                if name != "sources" and one != usual[key].get(name)
            )
        elif value != usual[key]:
            yield f"{key}={json.dumps(value)}"
