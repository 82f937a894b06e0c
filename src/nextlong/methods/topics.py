"""Topics, and the documents that BM25 finds for each of them.

In:  documents; topics from a file, from the clusters of the corpus, or from a server.
Out: for each topic its best documents in the whole corpus.

LiteLong (arXiv 2509.15568, §3) gets its topics from several models that debate within
the BISAC book classification, and searches with Manticore. A file may hold such topics.
Ours: the typical words of each cluster of the corpus are a topic; a model on a server
may turn them into titles, by one request per cluster. BM25 is that of `retrieval.bm25`
over whole documents, and any word of a topic counts.

Documents are scored shard by shard with the statistics of all of them, so that neither
shards nor workers change a score. Shapes: V words of all topics.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
import xxhash
from pydantic import Field

from nextlong import recipe as recipes
from nextlong.arrays import AnyArray, Hashes, Ints
from nextlong.artifacts.corpus_files import (
    CorpusFiles,
    corpus,
    count_chunks,
    iter_chunk_texts,
    read_chunks,
    sample_texts,
)
from nextlong.artifacts.results import ChunkFiles, IngestFiles
from nextlong.client import Client, UnansweredError, completion_in
from nextlong.engine.step import (
    Artifacts,
    ShardFiles,
    Step,
    StepFiles,
    Task,
    TaskResult,
    each_shard,
)
from nextlong.errors import RecipeError
from nextlong.methods.base import TopicHits
from nextlong.methods.keywords import content_words
from nextlong.plugins import METHODS
from nextlong.recipe import Recipe, Section
from nextlong.recipe.keys import (
    MayBePath,
    Named,
    Operational,
    Positive,
    Url,
)
from nextlong.retrieval.bm25 import (
    Vocabulary,
    count_known,
    hash_texts,
    idf_of,
    scores_of,
    weights_of,
)
from nextlong.retrieval.embed import encoder_step, prepared_encoder
from nextlong.retrieval.encoders.base import LoadedEncoder, kind_of
from nextlong.retrieval.indexes.kmeans import nearest_centres, train_centres
from nextlong.text import Json

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

CLUSTERS: Final[Literal["clusters"]] = "clusters"
_SERVER: Final = "openai:"
_ITERATIONS: Final = 10
_CHUNKS_PER_CLUSTER: Final = 32  # in the sample; fewer tell little about its words
_MIN_CHUNKS_PER_CLUSTER: Final = 4
_WORDS_PER_TOPIC: Final = 8
_TOPICS_PER_REQUEST: Final = 8
_MAX_ATTEMPTS: Final = 8
_TIMEOUT_S: Final = 120.0
_PROMPT: Final = (
    "A collection of documents has a group with these typical words: {words}.\n"
    "Name {count} different topics that documents of this group may be about, each in "
    "three to eight words, one a line, without numbers or explanations."
)
# A document found for a topic; `document` is its position among those with chunks,
# `hash` that of its content.
HITS: Final = np.dtype(
    [("topic", "i8"), ("document", "i8"), ("score", "f4"), ("hash", "u8")]
)


class Topics(Section):
    """Where topics come from: keys of each method that needs topics."""

    topics: Annotated[Named, MayBePath()] = Field(
        CLUSTERS,
        description=(
            "clusters (typical words of each cluster of the corpus), a text file with "
            "one topic a line, or openai:<model> on a server"
        ),
    )
    topic_count: Positive = Field(
        256, description="maximum number of topics, unless they are from a file"
    )
    hits: Positive = Field(
        20, description="documents that BM25 finds for each topic (LiteLong's)"
    )
    base_url: Url = Field(
        "https://api.openai.com/v1", description="of the server of topics: openai:…"
    )
    api_key_env: Annotated[str, Operational()] = Field(
        "OPENAI_API_KEY", description="environment variable with the server's API key"
    )

    @property
    def origin(self) -> Literal["clusters", "file", "server"]:
        """Where the topics come from."""
        if self.topics == CLUSTERS:
            return CLUSTERS
        return "server" if self.topics.startswith(_SERVER) else "file"

    @property
    def clusters(self) -> int:
        """The largest number of clusters that topics are made of."""
        if self.origin == "server":
            return -(-self.topic_count // _TOPICS_PER_REQUEST)
        return self.topic_count

    @property
    def sampled_chunks(self) -> int:
        """About how many chunks are sampled to find the clusters."""
        return self.clusters * _CHUNKS_PER_CLUSTER


class TopicsResult(TaskResult):
    """The number of topics, and of the clusters that they were made of."""

    topics: int
    clusters: int


class TopicsFiles(StepFiles):
    """The topics, a JSON list of strings."""

    step = "topics"
    topics = ShardFiles(".topics.json")


class _CountsResult(TaskResult):
    """The documents of a shard, and their words."""

    documents: int
    words: int


class TopicWordsFiles(StepFiles):
    """The words of topics in the documents of a shard."""

    step = "topic_words"
    counts = ShardFiles(".counts.npz")
    lengths = ShardFiles(".lengths.npy")
    frequencies = ShardFiles(".frequency.npy")


class TopicHitsFiles(StepFiles):
    """The best documents of a shard for each topic."""

    step = "topic_hits"
    hits = ShardFiles(".hits.npz")


def topic_steps(
    recipe: Recipe, ingest: Step, chunk: Step
) -> tuple[list[Step], list[Step]]:
    """Return the steps that find topics, and those that search for their documents."""
    options = recipe.options
    if not isinstance(options, Topics):
        base = "nextlong.methods.topics.Topics"
        raise METHODS.broken(
            recipe.compose.method,
            f"needs topics, but its Options do not derive from {base}, whose keys say "
            "where they come from",
        )
    finding = _finding_steps(recipe, options, ingest, chunk)
    topics = finding[-1]
    words = Step(
        name="topic_words",
        phase="search",
        version=1,
        config={},
        inputs=(ingest, chunk, topics),
        tasks=each_shard(
            _count_words,
            given=lambda done: {"words": _words_of(_topics_of(done))},
            documents=(ingest, IngestFiles.documents),
            chunks=(chunk, ChunkFiles.chunks),
        ),
        result=_CountsResult,
    )
    hits = Step(
        name="topic_hits",
        phase="search",
        version=1,
        config={"hits": options.hits},
        inputs=(ingest, chunk, topics, words),
        tasks=each_shard(
            partial(_find_documents, hits=options.hits),
            given=_queries,
            hashes=(ingest, IngestFiles.hashes),
            chunks=(chunk, ChunkFiles.chunks),
            counts=(words, TopicWordsFiles.counts),
            lengths=(words, TopicWordsFiles.lengths),
        ),
    )
    return finding, [words, hits]


def _finding_steps(
    recipe: Recipe, options: Topics, ingest: Step, chunk: Step
) -> list[Step]:
    if options.origin == "file":
        return [_topics_of_file(recipe.compose.method, Path(options.topics))]
    encoder = encoder_step(recipe.encoder, ingest, chunk, seed=recipe.seed)
    config: Json = {"topics": options.topics, "topic_count": options.topic_count}
    if options.origin == "server":
        config["base_url"] = options.base_url

    def tasks(done: Artifacts) -> list[Task]:
        find = partial(
            _find_topics,
            text=corpus(done),
            encoder=recipe.encoder,
            prepared=prepared_encoder(recipe.encoder, done),
            options=options,
            where=f"{recipe.compose.method}.topics",
            seed=recipe.seed,
        )
        return [find]

    topics = Step(
        name="topics",
        phase="search",
        version=1,
        config=config | {"seed": recipe.seed},
        inputs=(ingest, chunk, encoder),
        tasks=tasks,
        result=TopicsResult,
        resources=kind_of(recipe.encoder).resources(recipe.encoder),
    )
    return [encoder, topics]


# ---- where topics come from ----


def _topics_of_file(method: str, path: Path) -> Step:
    """Return the step of the topics of a file; its fingerprint is of their text.

    Raises RecipeError for a file that cannot be read or has no topic.
    """
    where = f"{method}.topics"
    fix = f"give a UTF-8 text file with one topic a line, {CLUSTERS} or openai:<model>"
    try:
        lines = path.expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = f"cannot be read ({type(error).__name__})"
        raise RecipeError(where=where, value=path, problem=problem, fix=fix) from None
    topics = _distinct(lines)
    if not topics:
        raise RecipeError(where=where, value=path, problem="has no topic", fix=fix)
    digest = hashlib.blake2b("\n".join(topics).encode(), digest_size=16)
    return Step(
        name="topics",
        phase="search",
        version=1,
        config={"topics": digest.hexdigest()},
        inputs=(),
        tasks=lambda _: [partial(_write_topics, topics=topics, clusters=0)],
        result=TopicsResult,
    )


def _distinct(lines: Sequence[str]) -> list[str]:
    """Return the topics of some lines, each once, in order."""
    stripped = (" ".join(line.split()) for line in lines)
    return list(dict.fromkeys(filter(None, stripped)))


def _write_topics(out: Path, *, topics: Sequence[str], clusters: int) -> TopicsResult:
    """Write `{out}.topics.json`."""
    text = json.dumps(list(topics), ensure_ascii=False, indent=0)
    Path(f"{out}.topics.json").write_text(text, encoding="utf-8")
    return TopicsResult(topics=len(topics), clusters=clusters)


def _find_topics(
    out: Path,
    *,
    text: CorpusFiles,
    encoder: recipes.Encoder,
    prepared: Any,
    options: Topics,
    where: str,
    seed: int,
) -> TopicsResult:
    """Write the topics of the clusters of a sample of all chunks."""
    total = sum(count_chunks(path) for path in text.chunks)
    texts = sample_texts(
        text.documents,
        text.chunks,
        fraction=options.sampled_chunks / max(1, total),
        seed=seed,
    )
    count = min(options.clusters, len(texts) // _MIN_CHUNKS_PER_CLUSTER)
    model = kind_of(encoder).load(encoder, prepared)
    words_of_clusters = _cluster_words(texts, model, count=max(1, count), seed=seed)
    topics = [" ".join(words) for words in words_of_clusters]
    if options.origin == "server":
        titles: list[str] = []
        for words in topics:
            titles += _titles(words, options, where=where)
        topics = titles
    distinct = _distinct(topics)[: options.topic_count]
    return _write_topics(out, topics=distinct, clusters=len(words_of_clusters))


def _cluster_words(
    texts: Sequence[str], model: LoadedEncoder, *, count: int, seed: int
) -> list[list[str]]:
    """Return the most typical words of each of `count` clusters of texts.

    A word's weight is its count in the cluster times log(1 + N / its count in all
    texts), where N is the mean number of words of a cluster (c-TF-IDF of BERTopic,
    arXiv 2203.05794). Clusters without a word have none.
    """
    vectors_ND = model.encode(texts)
    centres_CD = train_centres(
        vectors_ND, count=count, iterations=_ITERATIONS, seed=seed
    )
    cluster_of = nearest_centres(vectors_ND, centres_CD, count=1)[:, 0]
    counts = [Counter[str]() for _ in range(count)]
    for text, cluster in zip(texts, cluster_of.tolist(), strict=True):
        counts[cluster].update(content_words(text))
    total: Counter[str] = Counter()
    for of_cluster in counts:
        total.update(of_cluster)
    mean_words = total.total() / count
    typical: list[list[str]] = []
    for of_cluster in counts:
        weights = {
            word: number * np.log1p(mean_words / total[word])
            for word, number in of_cluster.items()
        }
        best = sorted(weights, key=lambda word: (-weights[word], word))
        if best:
            typical.append(best[:_WORDS_PER_TOPIC])
    return typical


def _titles(words: str, options: Topics, *, where: str) -> list[str]:
    """Return the topics that a model on a server names for the words of a cluster.

    Raises RecipeError without an answer.
    """
    url = f"{options.base_url.rstrip('/')}/chat/completions"
    prompt = _PROMPT.format(words=words, count=_TOPICS_PER_REQUEST)
    body: Json = {
        "model": options.topics.removeprefix(_SERVER),
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
    }
    client = Client(options.api_key_env, _MAX_ATTEMPTS, _TIMEOUT_S)
    try:
        answer = completion_in(client.post(url, body))
    except (UnansweredError, ValueError) as error:
        raise RecipeError(
            where=where,
            value=options.topics,
            problem=f"fails: {url} {error}",
            fix=f"check the server and the model's name, or set it to {CLUSTERS}",
        ) from None
    lines = (answer.text or "").splitlines()
    # Models number their lines, whatever they are asked.
    return [line.strip().lstrip("0123456789.-*•) ").strip() for line in lines]


# ---- the documents of topics ----


def _topics_of(done: Artifacts) -> list[str]:
    (path,) = TopicsFiles.of(done).topics
    return _read_topics(path)


def _read_topics(path: Path) -> list[str]:
    topics: list[str] = json.loads(path.read_text(encoding="utf-8"))
    return topics


def _words_of(topics: Sequence[str]) -> Hashes:
    """Return the hashes of the words of all topics, (V,) ascending."""
    hashes, _ = hash_texts(topics)
    return np.unique(hashes)


def _document_texts(documents: Path, chunks: Path) -> Iterator[list[str]]:
    """Yield the texts of a shard's documents that have chunks, batch by batch.

    They are joined from their chunks, so that decontaminated passages are missing.
    """
    for batch in iter_chunk_texts(documents, chunks):
        firsts = np.flatnonzero(np.diff(batch.doc_rows, prepend=-1)).tolist()
        bounds = pairwise([*firsts, len(batch.texts)])
        yield ["\n".join(batch.texts[first:last]) for first, last in bounds]


def _count_words(
    out: Path, *, documents: Path, chunks: Path, words: Hashes
) -> _CountsResult:
    """Count the words of topics in each document of a shard.

    Writes `{out}.counts.npz`, CSR (documents, V), `.lengths.npy`, the words of each
    document, and `.frequency.npy`, the documents that have each word.
    """
    from scipy import sparse

    counts = [sparse.csr_matrix((0, len(words)), dtype=np.float32)]
    lengths = [np.empty(0, np.int64)]
    for texts in _document_texts(documents, chunks):
        hashes, bounds = hash_texts(texts)
        counts.append(count_known(hashes, bounds, words))
        lengths.append(np.diff(bounds))
    all_counts = sparse.vstack(counts, format="csr")
    all_lengths = np.concatenate(lengths)
    frequency = np.bincount(all_counts.indices, minlength=len(words))
    sparse.save_npz(f"{out}.counts.npz", all_counts, compressed=False)
    np.save(f"{out}.lengths.npy", all_lengths)
    np.save(f"{out}.frequency.npy", frequency)
    return _CountsResult(documents=len(all_lengths), words=int(all_lengths.sum()))


def _queries(done: Artifacts) -> Json:
    """Return the counts of words in topics, and how rare these are in all documents."""
    shards = done["topic_words"].results(_CountsResult)
    documents = sum(shard.documents for shard in shards)
    topics = _topics_of(done)
    words = _words_of(topics)
    frequency = np.zeros(len(words), np.int64)
    for path in TopicWordsFiles.of(done).frequencies:
        frequency += np.load(path)
    vocabulary = Vocabulary(
        hashes=words,
        idf=idf_of(frequency, texts=documents),
        mean_words=sum(shard.words for shard in shards) / max(1, documents),
    )
    queries = count_known(*hash_texts(topics), words)
    return {"queries": queries, "vocabulary": vocabulary}


def _find_documents(
    out: Path,
    *,
    hashes: Path,
    chunks: Path,
    counts: Path,
    lengths: Path,
    queries: csr_matrix,
    vocabulary: Vocabulary,
    hits: int,
) -> TaskResult:
    """Write `{out}.hits.npz`: the HITS of a shard, the best of each topic.

    `counts` and `lengths` are from `_count_words`, `hashes` those of all documents.
    """
    from scipy import sparse

    weights = weights_of(sparse.load_npz(counts), np.load(lengths), vocabulary)
    doc_rows = np.unique(read_chunks(chunks, ("doc_row",))["doc_row"])
    content_hashes = np.load(hashes)[doc_rows]
    found = np.empty(0, HITS)
    for begin, scores in scores_of(queries, weights):
        hits_of_block = np.empty(scores.nnz, HITS)
        topic_of = np.repeat(np.arange(scores.shape[0]), np.diff(scores.indptr))
        hits_of_block["topic"] = begin + topic_of
        hits_of_block["document"] = scores.indices
        hits_of_block["score"] = scores.data
        hits_of_block["hash"] = content_hashes[scores.indices]
        found = np.append(found, best_hits(hits_of_block, hits))
    np.savez(f"{out}.hits.npz", hits=found, limit=hits)
    return TaskResult()


def best_hits(hits: AnyArray, count: int) -> AnyArray:
    """Return the best HITS of each topic, sorted by topic, best first.

    Of equal scores, the document with the smaller content hash, so that files and
    shards do not matter.
    """
    order = np.lexsort((hits["hash"], -hits["score"], hits["topic"]))
    topics = hits["topic"][order]
    ranks = np.arange(len(order)) - np.searchsorted(topics, topics)
    return hits[order[ranks < count]]


def read_topic_hits(topics: Path, paths: Sequence[Path], firsts: Ints) -> TopicHits:
    """Return the best documents of each topic among all shards.

    `firsts`, (shards,), is the position of the first document of each shard.
    """
    found = np.empty(0, HITS)
    for path, first in zip(paths, firsts.tolist(), strict=True):
        with np.load(path) as shard:
            hits = shard["hits"]
            limit = int(shard["limit"])
        hits["document"] += first
        found = best_hits(np.append(found, hits), limit)
    texts = _read_topics(topics)
    keys = [xxhash.xxh3_64_intdigest(text.encode()) for text in texts]
    return TopicHits(
        keys=np.array(keys, np.uint64),
        offsets=np.searchsorted(found["topic"], np.arange(len(texts) + 1)),
        documents=found["document"],
    )
