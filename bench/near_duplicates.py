"""Near-duplicates: how many are found, and what else is taken for one, on labelled pairs and on planted copies.

In:  JSONL files (plain, .gz or .zst) with `id` and `text`: corpora, pages with a `group` each (versions of one page), and
     pairs {a, b} of documents of the corpora that are near-duplicates.
Out: Markdown tables, and with --show N the chunks about which shingles and the alignment disagree.

A label says that two pages are versions of each other, not which chunks changed. So each chunk's true similarity is the share of
its words that a word by word alignment (difflib) finds in the other page, in order; pages of different groups may hold
copies of each other all the same.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

import fsspec
import numpy as np
import orjson
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from nextlong.corpus.chunk import chunk_text
from nextlong.retrieval.near_duplicates.rule import Texts, _covered_by
from nextlong.retrieval.near_duplicates.shingles import (
    _MIN_WORDS,
    _SLOTS,
    ComparedDocument,
    Shingles,
    Weights,
    add_counts,
    documents_of,
    shingles,
    weights_from,
)

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
ALIGNED_CHUNKS = 600  # of each kind of pair; an alignment takes milliseconds
Pair = tuple[int, int]


def similarities(
    candidates: Shingles, *, document: ComparedDocument, weights: Weights
) -> NDArray[np.float64]:
    """Return for each of m candidates the share of its words, by weight, that stand in a shared shingle, (m,) in [0, 1]."""
    texts = Texts.of(candidates, weights, 1.0)
    shares_of = _covered_by(document, texts).astype(np.float64)
    np.divide(shares_of, texts.whole, out=shares_of, where=texts.whole > 0)
    short = (
        candidates.is_short
    )  # of fewer than ten words: the document has the same or not
    shares_of[short] = np.isin(texts.hashes[texts.offsets[:-1][short]], document.wholes)
    return shares_of


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--corpus", nargs="+", type=Path, required=True, help="JSONL with id and text"
    )
    parser.add_argument("--versions", type=Path, help="JSONL with text and group")
    parser.add_argument(
        "--pairs", type=Path, help="JSONL with a and b, ids of the corpora"
    )
    parser.add_argument(
        "--planted",
        type=Path,
        help="JSONL whose chunks are copied with changes; default: the first corpus",
    )
    parser.add_argument("--threshold", type=float, default=0.8)
    parser.add_argument("--sample", type=int, default=1500, help="pairs of each kind")
    parser.add_argument(
        "--show", type=int, default=0, help="disagreements to print of each kind"
    )
    options = parser.parse_args()
    documents = {
        record["id"]: record["text"] for path in options.corpus for record in read(path)
    }
    weights = weights_of(list(documents.values()))
    print(f"{len(documents):,} documents; threshold {options.threshold}\n")
    planted = [record["text"] for record in read(options.planted or options.corpus[0])]
    print_planted(planted, weights, options.threshold)
    if options.versions:
        pages = read(options.versions)
        texts = [page["text"] for page in pages]
        same, other = version_pairs(
            [page["group"] for page in pages], texts, options.sample
        )
        print_pairs(
            "versions of a page", texts, same, other, weights_of(texts), options
        )
    if options.pairs:
        listed = [(pair["a"], pair["b"]) for pair in read(options.pairs)]
        listed = [
            pair for pair in listed if pair[0] in documents and pair[1] in documents
        ]
        texts, same, other = listed_pairs(listed, documents)
        print_pairs("listed pairs", texts, same, other, weights, options)


def read(path: Path) -> list[dict[str, str]]:
    """Return the records of a JSONL file."""
    with fsspec.open(
        str(path), "rb", compression=COMPRESSIONS.get(path.suffix)
    ) as lines:
        return [orjson.loads(line) for line in lines.read().splitlines()]


def weights_of(texts: Sequence[str]) -> Weights:
    """Return the weights of shingles as the stages would measure them on these documents."""
    counts = np.zeros(_SLOTS, np.uint32)
    for start in range(0, len(texts), 256):
        add_counts(counts, shingles(texts[start : start + 256]))
    return weights_from(counts, len(texts))


def print_planted(texts: Sequence[str], weights: Weights, threshold: float) -> None:
    """Change a share of the words of every chunk, one by one or as one passage, and look for its document in it."""
    draw = random.Random(0)
    vocabulary = [word for text in texts for word in re.findall(r"\w+", text)]
    print(
        "| copy | chunks | caught | least similarity | median |\n|---|---|---|---|---|"
    )
    for share, how in (
        (0.05, "words"),
        (0.1, "words"),
        (0.2, "words"),
        (0.3, "words"),
        (0.1, "passage"),
        (0.5, "passage"),
    ):
        found = []
        for text in texts:
            changed = [
                change(text[a:b], share, how, vocabulary, draw)
                for a, b in chunk_text(text)
            ]
            changed = [chunk for chunk in changed if len(words_of(chunk)) >= _MIN_WORDS]
            found += similarities(
                shingles(changed), document=documents_of([[text]])[0], weights=weights
            ).tolist()
        caught = np.mean(np.array(found) >= threshold)
        print(
            f"| {share:.0%} of the words, {'one by one' if how == 'words' else 'one passage'} | {len(found):,} | {caught:.2%} "
            f"| {min(found):.3f} | {np.median(found):.3f} |"
        )
    print()


def change(
    text: str, share: float, how: str, vocabulary: Sequence[str], draw: random.Random
) -> str:
    """Return the text with a share of its words replaced by words drawn from the vocabulary."""
    pieces = re.split(r"(\w+)", text)
    places = list(range(1, len(pieces), 2))
    count = round(share * len(places))
    start = draw.randint(0, len(places) - count) if places else 0
    for place in (
        draw.sample(places, count) if how == "words" else places[start : start + count]
    ):
        pieces[place] = draw.choice(vocabulary)
    return "".join(pieces)


def version_pairs(
    groups: Sequence[str], texts: Sequence[str], sample: int
) -> tuple[list[Pair], dict[str, list[Pair]]]:
    """Return ordered pairs of one group; of different groups, each page with its three nearest, and random ones."""
    draw = random.Random(0)
    of_group = np.unique(np.array(groups), return_inverse=True)[1]
    same = [
        (a, b)
        for a in range(len(groups))
        for b in np.flatnonzero(of_group == of_group[a]).tolist()
        if a != b
    ]
    near = nearest(texts, of_group, list(range(len(texts))), 3)
    chance = [
        (draw.randrange(len(texts)), draw.randrange(len(texts))) for _ in range(sample)
    ]
    chance = [(a, b) for a, b in chance if of_group[a] != of_group[b]]
    return draw.sample(same, min(sample, len(same))), {
        "nearest of another group": draw.sample(near, min(sample, len(near))),
        "random of another group": chance,
    }


def listed_pairs(
    listed: Sequence[tuple[str, str]], documents: dict[str, str]
) -> tuple[list[str], list[Pair], dict[str, list[Pair]]]:
    """Return texts, the listed pairs in both orders, and of each listed document the three nearest that are not listed with it."""
    names = sorted(documents)
    row = {name: number for number, name in enumerate(names)}
    texts = [documents[name] for name in names]
    same = [pair for a, b in listed for pair in ((row[a], row[b]), (row[b], row[a]))]
    known = set(same)
    near = [
        pair
        for pair in nearest(
            texts, np.arange(len(texts)), sorted({a for a, _ in same}), 8
        )
        if pair not in known
    ]
    return texts, same, {"nearest not listed": near}


def nearest(
    texts: Sequence[str], groups: NDArray[np.int64], rows: Sequence[int], count: int
) -> list[Pair]:
    """Return for each row its nearest texts outside its group, by TF-IDF and SVD."""
    terms = TfidfVectorizer(sublinear_tf=True, max_features=50_000).fit_transform(texts)
    vectors = TruncatedSVD(100, random_state=0).fit_transform(terms)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    pairs = []
    for row in rows:
        scores = vectors @ vectors[row]
        scores[groups == groups[row]] = -1
        pairs += [(row, other) for other in np.argsort(-scores)[:count].tolist()]
    return pairs


def print_pairs(
    title: str,
    texts: Sequence[str],
    same: list[Pair],
    others: dict[str, list[Pair]],
    weights: Weights,
    options: argparse.Namespace,
) -> None:
    """Print for each kind of pair how many chunks are flagged, and how the alignment judges a sample of them."""
    print(f"## {title}\n")
    print(
        "| pairs | chunks | flagged | pairs with a flagged chunk | aligned | recall | false alarms |\n|---|---|---|---|---|---|---|"
    )
    shown = []
    for kind, pairs in {title: same, **others}.items():
        chunks = [chunk for pair in pairs for chunk in judged(pair, texts, weights)]
        flagged = [chunk for chunk in chunks if chunk[2] >= options.threshold]
        pairs_flagged = len({chunk[0] for chunk in flagged})
        draw = random.Random(0)
        picked = draw.sample(chunks, min(ALIGNED_CHUNKS, len(chunks)))
        truth = [aligned_share(chunk, texts[pair[1]]) for pair, chunk, _ in picked]
        yes = [true >= options.threshold for true in truth]
        said = [chunk[2] >= options.threshold for chunk in picked]
        hits = sum(a and b for a, b in zip(yes, said, strict=True))
        wrong = sum(b and not a for a, b in zip(yes, said, strict=True))
        print(
            f"| {kind} | {len(chunks):,} | {len(flagged) / max(len(chunks), 1):.2%} | {pairs_flagged:,} of {len(set(pairs)):,} "
            f"| {len(picked)} | {hits} of {sum(yes)} | {wrong} of {len(yes) - sum(yes)} |"
        )
        differing = [
            row
            for row in zip(picked, truth, yes, said, strict=True)
            if row[2] != row[3]
        ]
        shown += [
            (kind, chunk[2], true, chunk[1])
            for chunk, true, _, _ in differing[: options.show]
        ]
    print()
    for kind, found, true, chunk in shown:
        print(
            f"- {kind}: similarity {found:.2f}, aligned {true:.2f}: {' '.join(chunk.split())[:400]}"
        )
    print()


def judged(
    pair: Pair, texts: Sequence[str], weights: Weights
) -> list[tuple[Pair, str, float]]:
    """Return (pair, chunk, similarity) for the chunks of the pair's first text, compared with the second."""
    text = texts[pair[0]]
    chunks = [text[a:b] for a, b in chunk_text(text)]
    chunks = [chunk for chunk in chunks if len(words_of(chunk)) >= _MIN_WORDS]
    other: ComparedDocument = documents_of([[texts[pair[1]]]])[0]
    found = similarities(shingles(chunks), document=other, weights=weights)
    return [
        (pair, chunk, float(score)) for chunk, score in zip(chunks, found, strict=True)
    ]


def words_of(text: str) -> list[str]:
    """Return the lower-cased words of a text."""
    return re.findall(r"[^\W_]+", text.lower())


def aligned_share(chunk: str, text: str) -> float:
    """Return the share of a chunk's words that an alignment finds in a text, in order."""
    own, other = words_of(chunk), words_of(text)
    blocks = SequenceMatcher(None, own, other, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks) / max(len(own), 1)


if __name__ == "__main__":
    main()
