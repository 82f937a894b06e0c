"""Drafts as files: rows by hand, what is dropped, and which chunks they name."""

import numpy as np
import pyarrow as pa
import pytest
from tests.support.arrow_files import write_arrow
from tokenizers import Tokenizer, models, pre_tokenizers

from nextlong import schemas
from nextlong.artifacts.corpus_files import CorpusFiles
from nextlong.artifacts.results import DraftResult, ReferencedChunksResult
from nextlong.methods import filter_candidates
from nextlong.methods.candidates import Candidates, Drafting, Prefixes
from nextlong.methods.extend import _draft_block
from nextlong.methods.filter_candidates import filter_near_duplicates
from nextlong.recipe.keys import Compose, Mine
from nextlong.retrieval.near_duplicates import rule
from nextlong.retrieval.near_duplicates.known import KnownPairs
from nextlong.retrieval.near_duplicates.shingles import (
    ShingleStore,
    documents_of,
    shingles,
)
from nextlong.schemas import META_DOCUMENTS, DropReason
from nextlong.sequences import tokenize
from nextlong.sequences.tokenize import TextEncoder, _list_referenced_chunks

SECOND = 1 << 32  # chunk 0 of shard 1


@pytest.fixture
def mined(tmp_path):
    """Two shards of 6 and 4 chunks of 10 characters; documents of chunks 0-1 and of chunks 2-4 are drawn."""
    chunks = []
    for shard, rows in enumerate((6, 4)):
        starts = np.arange(rows) * 10
        columns = [np.zeros(rows), starts, starts + 10, np.zeros(rows, bool)]
        chunks.append(
            write_arrow(tmp_path / f"{shard}.chunks.arrow", schemas.CHUNKS, columns)
        )
    metas = np.array([(1, 0xAB, 0, 2, 20), (2, 0xCD, 2, 3, 30)], META_DOCUMENTS)
    np.save(tmp_path / "metas.npy", metas)
    neighbours = [[2, 3, SECOND], [3, 4, SECOND + 1], [0, 1], [1, SECOND + 3], [0]]
    scores = [[0.9, 0.8, 0.7], [0.6, 0.5, 0.4], [0.3, 0.2], [0.1, 0.0], [-0.5]]
    candidates = write_arrow(
        tmp_path / "c.candidates.arrow",
        schemas.CANDIDATES,
        [[0, 1, 2, 3, 4], neighbours, scores],
    )
    documents = [
        write_arrow(
            tmp_path / f"{shard}.documents.arrow",
            schemas.DOCUMENTS,
            [["x" * 10 * rows], [shard], ["s"], ["i"]],
        )
        for shard, rows in enumerate((6, 4))
    ]
    pairs = Tokenizer(
        models.BPE(vocab={"x": 0, "xx": 1}, merges=[("x", "x")])
    )  # two characters a token
    pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.save(str(tmp_path / "t.tokenizer.json"))
    return {
        "rows": (tmp_path / "metas.npy", 0, 2),
        "candidates": candidates,
        "text": CorpusFiles(tuple(documents), tuple(chunks)),
        "tokenizer": (tmp_path / "t.tokenizer.json", "auto"),
    }


def settings(
    *,
    filters=None,
    target_tokens=20,
    chars_per_token=2.0,
    fit="exact",
    candidates=100,
    **mine,
):
    mine = {"near_duplicates": None, **mine}
    compose = Compose(target_tokens=target_tokens, fit=fit, draft_factor=1.5)
    how = Drafting(
        compose,
        Mine(**mine),
        target_tokens,
        chars_per_token,
        max_chars=10,
        candidates=candidates,
        seed=0,
    )
    return {"vectors": [], "filters": filters, "rules": how}


def read(path):
    with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
        assert reader.schema == schemas.DRAFTS
        return reader.read_all().to_pylist()


def test_a_draft_is_each_meta_chunk_and_a_prefix_of_its_candidates(mined, tmp_path):
    # 40 characters for T; 60 drafted less the document's 20: 20 for each of two
    # meta-chunks, of which 10 will be used.
    counts = _draft_block(tmp_path / "d", **mined, **settings())
    first, second = read(tmp_path / "d.drafts.arrow")
    assert counts == DraftResult(
        drafts=2,
        dropped={DropReason.TOO_LONG: 0, DropReason.NEAR_DUPLICATES: 0},
        dropped_examples={DropReason.TOO_LONG: (), DropReason.NEAR_DUPLICATES: ()},
    )
    assert first["sequence_id"] == "nextlong-00000000000000ab"
    assert first["chunk_id"] == [0, 2, 3, 1, 3, 4]
    assert first["role"] == [0, 1, 1, 0, 1, 1]
    assert first["group"] == [0, 0, 0, 1, 1, 1]
    assert first["score"] == pytest.approx([1, 0.9, 0.8, 1, 0.6, 0.5])
    # 10 characters for each of three; 0 is presumably used by the first.
    assert second["chunk_id"] == [2, 0, 3, 1, 4, 0]
    assert second["group"] == [0, 0, 1, 1, 2, 2]


def test_a_paper_draft_takes_k_negatives(mined, tmp_path):
    # k = (60 - 20) / (2 · 10) = 2 and (60 - 30) / (3 · 10) = 1
    _draft_block(tmp_path / "d", **mined, **settings(fit="paper"))
    first, second = read(tmp_path / "d.drafts.arrow")
    assert first["chunk_id"] == [0, 2, 3, 1, 3, 4, SECOND + 1]
    assert second["chunk_id"] == [2, 0, 3, 1, 4, 0]


@pytest.mark.parametrize("target_tokens", [11, 15])
def test_a_document_that_is_surely_too_long_is_dropped_here(
    mined, tmp_path, target_tokens
):
    # The documents have 10 and 15 tokens.
    counts = _draft_block(
        tmp_path / "d", **mined, **settings(target_tokens=target_tokens)
    )
    assert counts == DraftResult(
        drafts=1,
        dropped={DropReason.TOO_LONG: 1, DropReason.NEAR_DUPLICATES: 0},
        dropped_examples={
            DropReason.TOO_LONG: ((2, 3, 15),),
            DropReason.NEAR_DUPLICATES: (),
        },
    )
    assert [row["sequence_id"] for row in read(tmp_path / "d.drafts.arrow")] == [
        "nextlong-00000000000000ab"
    ]


def test_a_document_in_few_tokens_drafts_more_text(mined, tmp_path):
    # The corpus has half a character a token, these documents two: their own count.
    _draft_block(tmp_path / "scarce", **mined, **settings(chars_per_token=0.5))
    _draft_block(tmp_path / "plain", **mined, **settings())
    assert read(tmp_path / "scarce.drafts.arrow") == read(
        tmp_path / "plain.drafts.arrow"
    )


def test_a_block_may_be_part_of_the_draw(mined, tmp_path):
    write_arrow(
        tmp_path / "one.arrow",
        schemas.CANDIDATES,
        [[2, 3, 4], [[0], [], [1]], [[0.5], [], [0.25]]],
    )
    block = mined | {
        "rows": (tmp_path / "metas.npy", 1, 2),
        "candidates": tmp_path / "one.arrow",
    }
    _draft_block(tmp_path / "d", **block, **settings())
    (row,) = read(tmp_path / "d.drafts.arrow")
    assert row["sequence_id"] == "nextlong-00000000000000cd"
    assert row["chunk_id"] == [2, 0, 3, 4, 1]


def test_the_tokenizers_engine_is_the_recipes(mined, tmp_path, monkeypatch):
    asked = []

    class Noting(TextEncoder):
        def __init__(self, tokenizer, *, engine):
            asked.append(engine)
            super().__init__(tokenizer, engine=engine)

    monkeypatch.setattr(tokenize, "TextEncoder", Noting)
    for engine in ("reference", "auto"):
        _draft_block(
            tmp_path / engine,
            **(mined | {"tokenizer": (mined["tokenizer"][0], engine)}),
            **settings(),
        )
    assert asked == ["reference", "auto"]


@pytest.mark.parametrize(
    ("limit", "take", "rows"),
    [
        (None, [2, 1], [[0, 1, 2, 3, 4], [3]]),
        (2, [2, 0], [[0, 1, 2, 3, 4], []]),
        (1, [1, 0], [[0, 1, 2, 3, 4], []]),
    ],
)
def test_refer_lists_the_chunks_that_the_chosen_drafts_name(
    mined, tmp_path, limit, take, rows
):
    _draft_block(tmp_path / "d", **mined, **settings())
    write_arrow(
        tmp_path / "e.arrow",
        schemas.DRAFTS,
        [
            ["x"],
            [7],
            ["extended"],
            [[SECOND + 3, 0]],
            [[0, 1]],
            [[0, 0]],
            [[1, 0.5]],
            [[]],
            [""],
        ],
    )
    drafts = [tmp_path / "d.drafts.arrow", tmp_path / "e.arrow"]
    counts = _list_referenced_chunks(
        tmp_path / "r", drafts=drafts, chunks=mined["text"].chunks, limit=limit
    )
    assert counts == ReferencedChunksResult(
        take=tuple(take), drafts=sum(take), chunks=sum(map(len, rows))
    )
    assert [
        np.load(tmp_path / f"r.{shard:05d}.rows.npy").tolist() for shard in range(2)
    ] == rows


def test_no_candidate_scores_above_the_ceiling(mined, tmp_path):
    _draft_block(tmp_path / "d", **mined, **settings(max_similarity=0.8))
    first, _ = read(tmp_path / "d.drafts.arrow")
    assert first["chunk_id"] == [0, 3, SECOND, 1, 3, 4, SECOND + 1]
    assert first["score"] == pytest.approx([1, 0.8, 0.7, 1, 0.6, 0.5, 0.4])


@pytest.mark.parametrize(
    ("candidates", "shortages"),
    [
        # Each list of the second document has fewer candidates, so the corpus has no
        # more.
        (3, [DropReason.TOO_FEW_CANDIDATES, ""]),
        (4, ["", ""]),
    ],
)
def test_a_draft_whose_candidates_ran_out_says_whether_there_may_be_more(
    mined, tmp_path, candidates, shortages
):
    given = settings(target_tokens=40, candidates=candidates)
    _draft_block(tmp_path / "d", **mined, **given)
    assert [
        draft["shortage"] for draft in read(tmp_path / "d.drafts.arrow")
    ] == shortages


def test_near_duplicates_are_left_out_or_paired_and_counted(mined, tmp_path):
    # Chunk 2 is a copy of chunk 0, hence of the first meta-document, chunk 4 one of
    # chunk 3; the others are their own.
    paths = []
    for shard, blanks in enumerate(([1, 2, 1, 3, 3, 4], [5, 6, 7, 8])):
        texts = ["x" * blank + " " + "x" * (8 - blank) + "\n" for blank in blanks]
        columns = [["".join(texts)], [shard], ["s"], ["i"]]
        paths.append(
            write_arrow(tmp_path / f"{shard}.texts.arrow", schemas.DOCUMENTS, columns)
        )
        found = shingles(texts)
        np.save(tmp_path / f"{shard}.shingles.npy", found.hashes)
        np.save(tmp_path / f"{shard}.offsets.npy", found.offsets)
    store = ShingleStore(
        hashes=[tmp_path / f"{shard}.shingles.npy" for shard in range(2)],
        offsets=[tmp_path / f"{shard}.offsets.npy" for shard in range(2)],
    )
    np.save(tmp_path / "w.npy", np.full(1 << 10, 1024, np.uint16))
    given = settings(near_duplicates=0.8, filters=(store, tmp_path / "w.npy"))
    mined["text"] = CorpusFiles(tuple(paths), mined["text"].chunks)
    counts = _draft_block(tmp_path / "d", **mined, **given)
    first, second = read(tmp_path / "d.drafts.arrow")
    assert first["chunk_id"] == [0, 3, SECOND, 1, 3, 4, SECOND + 1]
    assert first["near_duplicates"] == [3, 4]
    assert second["chunk_id"] == [2, 1, 3, 1, SECOND + 3, 4]
    assert second["near_duplicates"] == []
    assert counts == DraftResult(
        drafts=2,
        dropped={DropReason.TOO_LONG: 0, DropReason.NEAR_DUPLICATES: 0},
        dropped_examples={DropReason.TOO_LONG: (), DropReason.NEAR_DUPLICATES: ()},
        near_duplicates=2 + 1,
        repeated_passages=0,
        near_duplicate_examples=((2, 0, 2), (4, 3, 1), (0, 2, 3)),
    )


WEIGHTS = np.full(1 << 16, 1024, np.uint16)


def words(number, *, count=40, changed=0):
    """A text of its own; `changed` of its words, far apart, are others."""
    own = [f"w{number}x{place}" for place in range(count)]
    for place in range(changed):
        own[place * (count // changed)] += "other"
    return " ".join(own)


@pytest.fixture
def stored(tmp_path):
    """A function of texts that returns them, and the store of their shingles, one chunk a text."""

    def store(texts):
        found = shingles(texts)
        np.save(tmp_path / "h.npy", found.hashes)
        np.save(tmp_path / "o.npy", found.offsets)
        return texts, ShingleStore(
            hashes=[tmp_path / "h.npy"], offsets=[tmp_path / "o.npy"]
        )

    return store


def offers(*lists):
    return Candidates(
        [np.array(own, np.int64) for own in lists],
        [np.linspace(0.9, 0.1, len(own), dtype=np.float32) for own in lists],
        [np.full(len(own), 100) for own in lists],
    )


def take(length):
    """A draft of as much of each list as holds `length` candidates that will serve."""

    def draft(offered):
        served = [np.cumsum(chars > 0) for chars in offered.chars]
        wanted = [int(np.searchsorted(own, length)) + 1 for own in served]
        return Prefixes(
            lengths=[min(len(own), n) for own, n in zip(served, wanted, strict=True)],
            ran_out=[len(own) < n for own, n in zip(served, wanted, strict=True)],
        )

    return draft


def filtered(store, offered, *, chunks=1, length=2):
    """Screen for a meta-document of the first chunks."""
    texts, shingles = store
    document = documents_of([texts[:chunks]])[0]
    found = filter_near_duplicates(
        offered,
        take(length),
        document,
        shingles,
        WEIGHTS,
        0.8,
        known_pairs=KnownPairs(),
    )
    return [
        ids[:length].tolist()
        for ids, length in zip(
            found.candidates.ids, found.prefixes.lengths, strict=True
        )
    ], found


def test_a_copy_of_the_meta_document_gives_way_to_the_next(stored):
    store = stored([words(0), words(1), words(0, changed=2), words(2), words(3)])
    drafted, found = filtered(store, offers([2, 1, 3, 4]))
    assert drafted == [[1, 3]]
    assert found.near_duplicates == 1
    assert found.pairs.tolist() == []
    assert found.candidates.scores[0] == pytest.approx(np.linspace(0.9, 0.1, 4)[1:])


def test_a_copy_of_another_meta_chunk_falls_out_too(stored):
    drafted, _ = filtered(
        stored([words(0), words(1), words(1, changed=1), words(2)]),
        offers([2, 3], [3]),
        chunks=2,
    )
    assert drafted == [[3], [3]]


def test_copies_among_candidates_stay_paired_and_the_later_one_counts_nothing(stored):
    texts = [words(0), words(1), words(2), words(2, changed=1), words(3)]
    drafted, found = filtered(stored(texts), offers([1, 3], [2, 4]))
    assert drafted == [[1, 3], [2, 4]]
    assert found.pairs.tolist() == [[3, 2]]
    drafted, found = filtered(stored(texts), offers([2, 3, 1, 4]))
    assert drafted == [[2, 3, 1]]
    assert found.pairs.tolist() == [[2, 3]]
    assert found.near_duplicates == 1


def test_a_copy_of_what_counts_nothing_counts(stored):
    # The second repeats the first, the third the second but not the first, which is
    # what will be placed.
    own = words(1, count=60).split()
    second = [*own[:5], *words(8, count=9).split(), *own[14:]]
    third = [*second[:40], *words(9, count=9).split(), *second[49:]]
    texts = [words(0), " ".join(own), " ".join(second), " ".join(third), words(2)]
    drafted, found = filtered(stored(texts), offers([1, 2, 3, 4]))
    assert drafted == [[1, 2, 3]]
    assert found.pairs.tolist() == [[1, 2], [2, 3]]


def test_pairs_outside_the_draft_are_left_out(stored):
    drafted, found = filtered(
        stored([words(0), words(1), words(2), words(3), words(3)]), offers([1, 2, 3, 4])
    )
    assert drafted == [[1, 2]]
    assert found.pairs.tolist() == []


def test_half_a_copy_stays(stored):
    drafted, found = filtered(
        stored([words(0), words(0, count=20) + " " + words(1, count=20), words(2)]),
        offers([1, 2]),
    )
    assert drafted == [[1, 2]]
    assert found.near_duplicates == 0


def test_it_looks_on_where_everything_so_far_falls_out(stored):
    copies = [words(0, changed=1 + number % 3) for number in range(50)]
    drafted, found = filtered(
        stored([words(0), *copies, words(1), words(2), words(0)]), offers(range(1, 54))
    )
    assert drafted == [[51, 52]]
    assert found.near_duplicates == 50


def test_a_list_of_nothing_but_copies_drafts_nothing(stored):
    drafted, found = filtered(
        stored([words(0), *(words(0) for _ in range(30))]), offers(range(1, 31))
    )
    assert drafted == [[]]
    assert found.near_duplicates == 30


def test_what_falls_out_for_a_passage_alone_is_counted(stored):
    passage = words(7, count=100)
    texts = [
        words(0, count=200) + " " + passage,
        passage + " " + words(1, count=200),
        words(2),
    ]
    texts += [words(number, count=300) + " " + words(8, count=120) for number in (3, 4)]
    drafted, found = filtered(stored(texts), offers([1, 2, 3, 4]), length=3)
    assert drafted == [[2, 3, 4]]
    assert found.pairs.tolist() == [[3, 4]]
    assert (found.near_duplicates, found.by_passage) == (2, 2)


# A draft without hope


def families(*sizes):
    """A document, and families of texts of which each repeats the others."""
    texts = [words(0)]
    for number, size in enumerate(sizes, start=1):
        texts += [words(number, changed=1 + member % 2) for member in range(size)]
    return texts


def rule_for(texts):
    (document,) = documents_of([texts[:1]])
    return {"document": document, "weights": WEIGHTS, "threshold": 0.8}


@pytest.mark.parametrize(
    "sizes",
    [
        [900],
        [60] * 15,
        [200, 300, 400],
        [1] * 900,
        [2] * 450,
        [5] * 180,
        [600, *[1] * 300],
    ],
    ids=["one", "fifteen", "three", "none", "pairs", "fives", "one beside other texts"],
)
def test_usable_candidates_are_estimated_from_a_sample(stored, sizes):
    """By less than the margin of a factor of two with which a draft is given up."""
    texts, store = stored(families(*sizes))
    chunks = np.arange(1, len(texts))
    usable = filter_candidates.estimate_usable(chunks, store, rule_for(texts))
    assert len(sizes) / 1.9 < usable < 2.5 * len(sizes)


def screened(stored, monkeypatch, texts, *, needed):
    """Return what is left of all texts as candidates, and the texts that were paired."""
    texts, store = stored(texts)
    paired = []

    def pair_up(compared):
        paired.append(len(compared.others))
        return rule.pair_up(compared)

    monkeypatch.setattr(filter_candidates, "pair_up", pair_up)
    found = filter_near_duplicates(
        offers(range(1, len(texts))),
        take(needed),
        rule_for(texts)["document"],
        store,
        WEIGHTS,
        0.8,
        known_pairs=KnownPairs(),
        needed_chars=100 * needed,
    )
    return found, paired


@pytest.mark.parametrize("sizes", [[1500], [300] * 5, [60] * 25])
def test_a_draft_of_mostly_copies_is_given_up_before_they_are_paired(
    stored, monkeypatch, sizes
):
    texts = families(*sizes)
    found, paired = screened(stored, monkeypatch, texts, needed=400)
    assert found is None
    assert paired == []


def test_a_draft_that_would_compare_all_copies_is_given_up(stored, monkeypatch):
    """The families would suffice for a sequence, but not for a draft."""
    texts, store = stored(families(*[25] * 60))
    monkeypatch.setattr(filter_candidates, "pair_up", None)
    found = filter_near_duplicates(
        offers(range(1, len(texts))),
        take(75),
        rule_for(texts)["document"],
        store,
        WEIGHTS,
        0.8,
        known_pairs=KnownPairs(),
        needed_chars=100 * 50,
        drafted_chars=100 * 75,
    )
    assert found is None


def test_copies_do_not_end_a_draft_whose_other_candidates_suffice(stored, monkeypatch):
    texts = families(300, *[1] * 500)
    found, _ = screened(stored, monkeypatch, texts, needed=400)
    assert found is not None
    assert found.negatives == 400


def judged_pairs(monkeypatch):
    """Return the list to which each comparison adds the number of pairs that it judges."""
    counts = []
    plain = rule._shared_weights

    def shared(*arguments):
        weights = plain(*arguments)
        counts.append(len(weights))
        return weights

    monkeypatch.setattr(rule, "_shared_weights", shared)
    return counts


def test_the_pairs_of_a_draft_of_few_copies_are_not_kept(stored, monkeypatch):
    texts, store = stored(families(*[8] * 80))
    monkeypatch.setattr(filter_candidates, "estimate_usable", lambda *_: len(texts))
    known_pairs = KnownPairs()
    found = filter_near_duplicates(
        offers(range(1, len(texts))),
        take(70),
        rule_for(texts)["document"],
        store,
        WEIGHTS,
        0.8,
        known_pairs=known_pairs,
    )
    assert found.negatives == 70
    assert not known_pairs.knows(np.arange(1, 2))


def test_a_draft_of_small_families_judges_each_pair_once(stored, monkeypatch):
    """Though it looks further several times, and the next draft takes the same chunks."""
    texts, store = stored(families(*[8] * 80))
    counts = judged_pairs(monkeypatch)
    monkeypatch.setattr(filter_candidates, "estimate_usable", lambda *_: 80)
    known_pairs = KnownPairs()
    found = []
    for candidates in (range(1, len(texts) - 40), range(41, len(texts))):
        found.append(
            filter_near_duplicates(
                offers(candidates),
                take(70),
                rule_for(texts)["document"],
                store,
                WEIGHTS,
                0.8,
                known_pairs=known_pairs,
            )
        )
    assert [one.negatives for one in found] == [70, 70]
    # Members of a family are two distinct texts, compared in both directions.
    assert sum(counts) == 2 * 80
