"""Select: exact duplicates, caps and weights, against hand-written cases and a brute-force model."""

import json
from fractions import Fraction
from itertools import accumulate
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nextlong
from nextlong import pipeline
from nextlong.cli.main import main
from nextlong.corpus import select as select_module
from nextlong.corpus.select import (
    Selected,
    SelectResult,
    _select_documents,
    exclusions_of,
)
from nextlong.errors import CorpusError
from nextlong.recipe import Source
from nextlong.rng import keyed_hash
from nextlong.runs.statistics.measure import measure
from nextlong.verify import corpus


def select(folder, shards, sources, *, seed=0, held_documents=4_000_000):
    """Run on shards [(source index, [(hash, chars[, hash compared]), ...]), ...]; return counts and kept (shard, row)s."""
    hashes, chars, compared = [], [], []
    for k, (_, rows) in enumerate(shards):
        hashes.append(folder / f"{k}.hashes.npy")
        chars.append(folder / f"{k}.chars.npy")
        compared.append(folder / f"{k}.compared.npy")
        np.save(
            compared[-1],
            np.array([row[2] if len(row) > 2 else row[0] for row in rows], np.uint64),
        )
        np.save(hashes[-1], np.array([row[0] for row in rows], np.uint64))
        np.save(chars[-1], np.array([row[1] for row in rows], np.int64))
    counts = _select_documents(
        folder / "out",
        hashes=hashes,
        compared=compared,
        chars=chars,
        shard_sources=[source for source, _ in shards],
        sources=sources,
        seed=seed,
        held_documents=held_documents,
    )
    keeps = [np.load(folder / f"out.{k:05d}.keep.npy") for k in range(len(shards))]
    assert all(
        keep.dtype == np.bool_ and len(keep) == len(rows)
        for keep, (_, rows) in zip(keeps, shards, strict=True)
    )
    return counts, [
        (k, row)
        for k, keep in enumerate(keeps)
        for row in np.flatnonzero(keep).tolist()
    ]


def key(content_hash, seed=0):
    return int(
        keyed_hash(np.array([content_hash], np.uint64), seed=seed, stage="select")[0]
    )


def model(shards, sources, seed):
    """The same, in plain Python over all documents at once."""
    seen, kept = set(), {i: [] for i in range(len(sources))}
    for k, (source, rows) in sorted(enumerate(shards), key=lambda shard: shard[1][0]):
        for row, (content_hash, chars) in enumerate(rows):
            if content_hash not in seen:
                seen.add(content_hash)
                kept[source].append((key(content_hash, seed), chars, (k, row)))

    def prefix(documents, max_documents, max_chars):
        ends = list(accumulate(chars for _, chars, _ in documents))
        fitting = sum(
            1
            for count, end in enumerate(ends, 1)
            if count <= max_documents and end <= max_chars
        )
        return documents[: max(fitting, 1)]

    for i, source in enumerate(sources):
        kept[i] = prefix(
            sorted(kept[i]), source.max_documents or 10**9, source.max_chars or 10**18
        )
    weighted = {
        i: Fraction(source.weight) for i, source in enumerate(sources) if source.weight
    }
    totals = {i: sum(chars for _, chars, _ in kept[i]) for i in weighted}
    scale = min((totals[i] / weight for i, weight in weighted.items()), default=0)
    for i, weight in weighted.items():
        kept[i] = prefix(kept[i], 10**9, scale * weight)
    return sorted(place for documents in kept.values() for _, _, place in documents)


def plain(count):
    return [Source(path=f"s{i}") for i in range(count)]


def test_first_of_equal_documents_stays_across_shards_and_sources(tmp_path):
    shards = [(0, [(7, 1), (8, 1), (7, 1)]), (1, [(8, 1), (9, 1)])]
    counts, kept = select(tmp_path, shards, plain(2))
    assert kept == [(0, 0), (0, 1), (1, 1)]
    assert counts == SelectResult(
        kept=3,
        duplicates=2,
        capped=0,
        weighted_out=0,
        sources={
            "s0": Selected(kept=2, duplicates=1, capped=0, weighted_out=0),
            "s1": Selected(kept=1, duplicates=1, capped=0, weighted_out=0),
        },
    )


@pytest.mark.parametrize("held_documents", [1, 2, 100])
def test_of_documents_compared_as_equal_the_earliest_source_and_then_the_smallest_content_hash_stays(
    tmp_path, held_documents
):
    first = [
        (0, [(9, 1, 5), (3, 1, 5)]),
        (0, [(4, 1, 5), (11, 1, 6)]),
        (1, [(1, 1, 5), (2, 1, 6), (8, 1, 7)]),
    ]
    counts, kept = select(tmp_path, first, plain(2), held_documents=held_documents)
    assert kept == [(0, 1), (1, 1), (2, 2)]
    assert [row.duplicates for row in counts.sources.values()] == [2, 2]
    moved = [
        (0, [(11, 1, 6), (4, 1, 5)]),
        (0, [(9, 1, 5), (3, 1, 5)]),
        (1, [(8, 1, 7), (1, 1, 5), (2, 1, 6)]),
    ]
    _, kept = select(tmp_path, moved, plain(2), held_documents=held_documents)
    assert kept == [(0, 0), (1, 1), (2, 0)]  # the same documents


@pytest.mark.parametrize("held_documents", [1, 2, 3, 100])
def test_ranges_of_the_hash_space_meet_without_gap_or_overlap(tmp_path, held_documents):
    edges = [
        0,
        2**62 - 1,
        2**62,
        2**63 - 1,
        2**63,
        2**64 // 3,
        2**64 // 3 + 1,
        2**64 - 1,
    ]
    rows = [(edge, 1) for edge in edges]
    _, kept = select(
        tmp_path, [(0, rows), (0, rows)], plain(1), held_documents=held_documents
    )
    assert kept == [(0, row) for row in range(8)]


def test_cap_on_documents_keeps_those_of_smallest_key(tmp_path):
    rows = [(n * 977, 10) for n in range(50)]
    counts, kept = select(tmp_path, [(0, rows)], [Source(path="s", max_documents=7)])
    assert {row for _, row in kept} == set(
        sorted(range(50), key=lambda n: key(n * 977))[:7]
    )
    assert (counts.kept, counts.capped) == (7, 43)


def test_cap_on_characters_is_never_exceeded_and_stops_at_the_first_that_does_not_fit(
    tmp_path,
):
    rows = [(n * 977, n + 1) for n in range(50)]
    _, kept = select(tmp_path, [(0, rows)], [Source(path="s", max_chars=300)])
    order = sorted(range(50), key=lambda n: key(n * 977))
    expected = [
        n
        for n, total in zip(order, accumulate(n + 1 for n in order), strict=True)
        if total <= 300
    ]
    assert sorted(row for _, row in kept) == sorted(expected)


def test_a_cap_that_documents_of_one_bin_reach_exactly_keeps_the_last_of_them(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(select_module, "_BIN_BITS", 1)
    rows = [(n * 977, 10) for n in range(50)]
    _, kept = select(tmp_path, [(0, rows)], [Source(path="s", max_chars=100)])
    assert {row for _, row in kept} == set(
        sorted(range(50), key=lambda n: key(n * 977))[:10]
    )


def test_cap_on_characters_below_every_document_keeps_one(tmp_path):
    rows = [(n, 100) for n in range(5)]
    _, kept = select(tmp_path, [(0, rows)], [Source(path="s", max_chars=10)])
    assert kept == [(0, min(range(5), key=key))]


def test_weights_hold_to_the_scarcest_and_leave_unweighted_sources_whole(tmp_path):
    shards = [
        (s, [(s * 10**6 + n, 10) for n in range(count)])
        for s, count in enumerate([100, 30, 55])
    ]
    sources = [
        Source(path="web", weight=1),
        Source(path="books", weight=2),
        Source(path="wiki"),
    ]
    counts, _ = select(tmp_path, shards, sources)
    assert {name: row.kept for name, row in counts.sources.items()} == {
        "web": 15,
        "books": 30,
        "wiki": 55,
    }
    assert counts.sources["web"].weighted_out == 85


def test_weighted_share_below_one_document_keeps_one(tmp_path):
    shards = [(0, [(1, 1)]), (1, [(2, 1), (3, 1)])]
    counts, _ = select(
        tmp_path, shards, [Source(path="a", weight=1), Source(path="b", weight=0.1)]
    )
    assert counts.sources["b"].kept == 1


def test_caps_come_before_weights(tmp_path):
    shards = [(s, [(s * 10**6 + n, 10) for n in range(100)]) for s in range(2)]
    sources = [
        Source(path="web", weight=1),
        Source(path="books", weight=1, max_documents=20),
    ]
    counts, _ = select(tmp_path, shards, sources)
    assert counts.sources["web"] == Selected(
        kept=20, duplicates=0, capped=0, weighted_out=80
    )
    assert counts.sources["books"] == Selected(
        kept=20, duplicates=0, capped=80, weighted_out=0
    )


def test_weighted_source_with_nothing_of_its_own_is_refused(tmp_path):
    shards = [(0, [(1, 5)]), (1, [(1, 5)])]
    with pytest.raises(CorpusError) as refused:
        select(tmp_path, shards, [Source(path="a"), Source(path="b", weight=1)])
    assert refused.value.where == "ingest.sources[1].weight"


def test_source_without_a_shard_counts_nothing(tmp_path):
    counts, _ = select(
        tmp_path, [(0, [(1, 5)])], [Source(path="a"), Source(path="b", max_documents=3)]
    )
    assert counts.sources["b"] == Selected(
        kept=0, duplicates=0, capped=0, weighted_out=0
    )


def test_draw_depends_on_the_seed_and_not_on_sharding_or_order(tmp_path):
    rows = [(n * 31, 10) for n in range(200)]
    sources = [Source(path="s", max_documents=40)]
    layouts = {
        "one": [(0, rows)],
        "many": [(0, rows[::-1][i : i + 9]) for i in range(0, 200, 9)],
    }
    drawn = {}
    for name, shards in layouts.items():
        (tmp_path / name).mkdir()
        _, kept = select(tmp_path / name, shards, sources)
        drawn[name] = {shards[k][1][row][0] for k, row in kept}
    _, other = select(tmp_path, layouts["one"], sources, seed=1)
    assert drawn["one"] == drawn["many"]
    assert {rows[row][0] for _, row in other} != drawn["one"]


def test_large_source_is_cut_exactly(tmp_path):
    random = np.random.default_rng(0)
    hashes, chars = (
        random.integers(0, 2**64, 12_000, np.uint64),
        random.integers(1, 5000, 12_000),
    )
    rows = list(zip(hashes.tolist(), chars.tolist(), strict=True))
    source = Source(path="s", max_chars=14_000_000)
    shards = [(0, rows[:5_000]), (0, rows[5_000:])]
    counts, kept = select(tmp_path, shards, [source], held_documents=2_000)
    assert kept == model(shards, [source], 0)
    assert 0 < counts.capped < 12_000


HASHES = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 12))
ROWS = st.lists(st.tuples(HASHES, st.integers(1, 40)), min_size=1, max_size=15)
CAP = st.one_of(st.none(), st.integers(1, 100))


@given(data=st.data(), seed=st.integers(0, 3), held_documents=st.integers(1, 30))
def test_agrees_with_a_model_in_plain_python(
    tmp_path_factory, data, seed, held_documents
):
    caps = data.draw(
        st.lists(
            st.tuples(CAP, CAP, st.sampled_from([None, 0.1, 1.0, 3.0])),
            min_size=1,
            max_size=3,
        )
    )
    sources = [
        Source(path=f"s{i}", max_documents=d, max_chars=c, weight=w)
        for i, (d, c, w) in enumerate(caps)
    ]
    shards = data.draw(
        st.lists(
            st.tuples(st.integers(0, len(sources) - 1), ROWS), min_size=1, max_size=5
        )
    )
    seen, own = set(), set()
    for source, rows in sorted(shards, key=lambda shard: shard[0]):
        own.update([source] if {row[0] for row in rows} - seen else [])
        seen.update(row[0] for row in rows)
    folder = tmp_path_factory.mktemp("model")
    if any(source.weight and i not in own for i, source in enumerate(sources)):
        with pytest.raises(CorpusError):
            select(folder, shards, sources, seed=seed, held_documents=held_documents)
        return
    counts, kept = select(
        folder, shards, sources, seed=seed, held_documents=held_documents
    )
    assert kept == model(shards, sources, seed)
    assert sum(
        getattr(counts, part)
        for part in ("kept", "duplicates", "capped", "weighted_out")
    ) == sum(len(r) for _, r in shards)


# The exclusion list: what a line means, and every mistake named with its place


def sources(*names):
    return [Source(path="x", name=name) for name in names]


def test_a_line_excludes_a_document_or_a_whole_source(tmp_path):
    path = tmp_path / "marks.jsonl"
    path.write_text(
        '{"source": "a", "id": "1", "note": "spam"}\n{"source": "b"}\n{"source": "gone", "id": "2"}\n'
    )
    (a, b, c), elsewhere = exclusions_of(str(path), sources("a", "b", "c"))
    assert elsewhere == 1
    assert (a.holds("1"), a.holds("2"), b.holds("2"), c.holds("1")) == (
        True,
        False,
        True,
        False,
    )
    assert a.identity != b.identity != c.identity == ""
    path.write_text('{"source": "b"}\n{"source": "a", "id": "1"}\n')
    assert (
        exclusions_of(str(path), sources("a", "b"))[0][0].identity == a.identity
    )  # neither order nor notes count


def test_a_line_separator_within_an_id_ends_no_line_and_an_empty_line_is_none(tmp_path):
    path = tmp_path / "marks.jsonl"
    path.write_text(
        '\n{"source": "a", "id": "1\u20282\u20293\x854"}\r\n \n', encoding="utf-8"
    )
    assert exclusions_of(str(path), sources("a"))[0][0].ids == {"1\u20282\u20293\x854"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"source": "a"}\n{', "marks.jsonl:2"),
        ('{"id": "1"}', "marks.jsonl:1"),
        ('{"source": "a", "id": 7}', "marks.jsonl:1"),
        ('{"source": "other"}', "marks.jsonl"),
        (None, "marks.jsonl"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused_and_named(tmp_path, text, named):
    path = tmp_path / "marks.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CorpusError) as refused:
        exclusions_of(str(path), sources("a"))
    assert refused.value.where == "ingest.exclude"
    assert named in str(refused.value)


def test_a_run_excludes_what_was_marked_and_verify_holds_it_to_that(
    small_corpus, few_recipe, tmp_path, capsys, monkeypatch
):
    rows = [
        json.loads(line)
        for path in sorted(small_corpus.iterdir())
        for line in path.read_text().splitlines()
    ]
    monkeypatch.chdir(tmp_path)
    marks = tmp_path / "marks.jsonl"
    marked = [row["id"] for row in rows[::9]]
    named = [("small", one) for one in marked] + [
        ("small", "gone"),
        ("other", marked[0]),
    ]
    marks.write_text(
        "".join(
            json.dumps({"source": source, "id": one}) + "\n"
            for source, one in named * 2
        )
    )
    run_dir = tmp_path / "run"
    pipeline.run(few_recipe(run_dir, "ingest.exclude=marks.jsonl"))
    run = nextlong.open(run_dir)
    served = {span.source_id for sequence in run.sequences() for span in sequence.spans}
    assert served.isdisjoint(marked)
    measured = measure(run)
    (removed,) = [
        one for one in measured.corpus.left_out if "ingest.exclude" in one.reason
    ]
    assert removed.count == len(marked)
    (told,) = [
        one.message for one in measured.warnings if one.name == "unmet-exclusions"
    ]
    assert told.startswith(
        f"2 of {len(named):,} entries of ingest.exclude match no document"
    )
    assert "excluded_met" not in json.dumps(
        [part["counts"] for part in run.steps["ingest"].manifest["parts"]]
    )
    met = [
        json.loads(file.read_text())["entries"]
        for file in run.steps["ingest"].files(".excluded_met.json")
    ]
    assert sorted(one for task in met for one in task) == sorted(marked)

    def verified():
        capsys.readouterr()
        code = main(["verify", str(run_dir), "--json"])
        (check,) = [
            one
            for one in json.loads(capsys.readouterr().out)["checks"]
            if one["check"] == "excluded documents"
        ]
        return code, check["result"], check["checked"] > 0

    assert verified() == (0, "pass", True)
    (kept,) = run.steps["ingest"].files(".excluded.json")
    for whole, ids in ((False, [next(one for one in served if one)]), (True, [])):
        kept.write_text(json.dumps({"source": "small", "whole": whole, "ids": ids}))
        assert verified()[:2] == (1, "breach")


def test_a_run_whose_list_named_nothing_has_nothing_to_check():
    ingest = {"exclude": "marks.jsonl", "sources": []}
    run = SimpleNamespace(recipe={"ingest": ingest}, files=lambda *_: [], shards=[])
    (outcome,) = corpus._check_columns(run, documents=None)
    assert outcome.result == "not needed"


def test_every_entry_that_names_a_document_raises_no_warning(
    small_corpus, few_recipe, tmp_path
):
    row = json.loads(
        next(iter(sorted(small_corpus.iterdir()))).read_text().split("\n")[0]
    )
    (tmp_path / "marks.jsonl").write_text(
        json.dumps({"source": "small", "id": row["id"]})
    )
    excluding = f"ingest.exclude={tmp_path / 'marks.jsonl'}"
    pipeline.run(few_recipe(tmp_path / "run", excluding, "compose.method=standard"))
    warnings = measure(nextlong.open(tmp_path / "run")).warnings
    assert "unmet-exclusions" not in [one.name for one in warnings]
