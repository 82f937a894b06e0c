"""Topics and BM25 on six hand-written documents, against a naive count of words."""

import json
import math
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from nextlong.errors import RecipeError
from nextlong.methods import topics
from nextlong.recipe import Recipe
from nextlong.rng import rng_for

DOCUMENTS = {
    "loaf": "Rye flour and yeast make a dough.\nThe dough rises; the oven waits.",
    "oven": "An oven bakes bread. Bread needs flour, and flour needs a mill.",
    "reef": "The reef shelters fish.\nA tide lifts the boat over the reef.",
    "boat": "A boat has a sail, and the sail has a rope.",
    "star": "A star is far away. Its light is old.",
    "moon": "The moon moves the tide. The tide moves the boat.",
}
TOPICS = ["flour and bread", "the tide lifts a boat", "light of a star", "violin"]


def naive_hits(topic, count):
    """Return the names of the best documents by Lucene's BM25, written out."""
    words = {name: re.findall(r"\w+", text.lower()) for name, text in DOCUMENTS.items()}
    mean = sum(map(len, words.values())) / len(words)
    scores = {}
    for name, own in words.items():
        score = 0.0
        for word in re.findall(r"\w+", topic.lower()):
            holders = sum(word in other for other in words.values())
            frequency = own.count(word)
            idf = math.log(1 + (len(words) - holders + 0.5) / (holders + 0.5))
            norm = 1.2 * (1 - 0.75 + 0.75 * len(own) / mean)
            score += idf * frequency / (frequency + norm)
        if score > 0:
            scores[name] = score
    return sorted(scores, key=lambda name: -scores[name])[:count]


@pytest.fixture(scope="module")
def hits_of(tmp_path_factory):
    """A function of shard size in MB and hits that returns the documents of each topic."""
    from nextlong import pipeline
    from nextlong.checks import Corpus
    from nextlong.engine.executor import SerialExecutor
    from nextlong.engine.runner import run_steps
    from nextlong.methods.documents import DocumentsFiles, _first_of_shards

    folder = tmp_path_factory.mktemp("topics")
    lines = [json.dumps({"id": name, "text": text}) for name, text in DOCUMENTS.items()]
    (folder / "c.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "topics.txt").write_text("\n".join([*TOPICS, "", TOPICS[0]]))

    def find(shard_mb, hits):
        recipe = Recipe.from_dict(
            {
                "run_dir": str(folder / f"run-{shard_mb}"),
                "executor": "serial",
                "ingest": {
                    "sources": [{"path": str(folder / "c.jsonl")}],
                    "shard_mb": shard_mb,
                },
                "chunk": {"max_chars": 40},
                "tokenizer": {"train": 300},
                "compose": {"method": "litelong", "target_tokens": 16},
                "litelong": {"topics": str(folder / "topics.txt"), "hits": hits},
            }
        )
        steps = pipeline.route(recipe, Corpus(recipe).files)
        done = run_steps(steps, run_dir=recipe.run_path, executor=SerialExecutor())
        rows = np.load(DocumentsFiles.of(done).documents[0])
        paths = topics.TopicHitsFiles.of(done).hits
        firsts = _first_of_shards(rows, shards=len(paths))[:-1]
        found = topics.read_topic_hits(
            topics.TopicsFiles.of(done).topics[0], paths, firsts
        )
        from nextlong.artifacts.corpus_files import corpus, documents_of, source_ids

        text = corpus(done)
        ids = documents_of(rows["first_chunk"], text.chunks)
        names = source_ids(ids, text.documents)
        return [names[found.of(topic)].tolist() for topic in range(len(TOPICS))], len(
            paths
        )

    return find


@pytest.mark.parametrize("hits", [1, 2, 6])
def test_the_hits_of_a_topic_are_those_of_bm25_written_out(hits_of, hits):
    found, shards = hits_of(1, hits)
    assert shards == 1
    assert found == [naive_hits(topic, hits) for topic in TOPICS]
    assert found[-1] == [], "no document has the word of the last topic"


def test_shards_do_not_change_hits(hits_of):
    found, shards = hits_of(0.0001, 3)
    assert shards > 2
    assert found == [naive_hits(topic, 3) for topic in TOPICS]


def test_of_equal_scores_the_smaller_hash_of_the_content_is_first():
    hits = np.zeros(4, topics.HITS)
    hits["topic"] = [1, 0, 0, 0]
    hits["score"] = [1, 2, 2, 3]
    hits["hash"] = [1, 9, 8, 7]
    hits["document"] = [10, 11, 12, 13]
    best = topics.best_hits(hits, 2)
    assert best["document"].tolist() == [13, 12, 10]


class _Axes:
    """An encoder with one axis per word of a list."""

    dimensions = 3

    def encode(self, texts):
        words = ("dough", "reef", "star")
        rows = [[text.count(word) + 1e-3 for word in words] for text in texts]
        vectors = np.array(rows, np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_the_topic_of_a_cluster_is_its_typical_words():
    draw = rng_for(1, "test")
    groups = (["dough", "oven"], ["reef", "boat"], ["star", "light"])
    texts = [" ".join(draw.permutation([*group, "house"])) for group in groups * 8]
    found = topics._cluster_words(texts, _Axes(), count=3, seed=0)
    # A word of every cluster weighs less than those of one.
    assert sorted(sorted(words[:2]) for words in found) == sorted(map(sorted, groups))
    assert all(words[2] == "house" for words in found)


def naive_weights(clusters):
    """Return the weight of each word in each cluster, as BERTopic's paper writes it."""
    counts = [Counter(words) for words in clusters]
    total = sum(counts, Counter())
    mean = sum(total.values()) / len(clusters)
    return [
        {word: tf * math.log(1 + mean / total[word]) for word, tf in count.items()}
        for count in counts
    ]


def test_weights_of_words_are_those_of_the_formula():
    texts = ["dough dough yeast", "reef dough tide", "star moon moon", "reef reef sail"]
    found = topics._cluster_words(texts, _Axes(), count=4, seed=0)
    by_cluster = [text.split() for text in texts]
    expected = [
        sorted(weights, key=lambda word: (-weights[word], word))
        for weights in naive_weights(by_cluster)
    ]
    assert sorted(found) == sorted(expected)


@pytest.fixture
def server():
    """A chat server that answers with numbered lines; it records what it was asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body)
            content = "1. Bread ovens of Rome\n2) Sourdough\n\n- Sourdough"
            answer = {"choices": [{"message": {"content": content}}]}
            if body["model"] == "broken":
                answer = {"error": "none"}
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    running.asked = asked
    yield running
    running.shutdown()
    running.server_close()


def titles(server, model="small"):
    options = topics.Topics(
        topics=f"openai:{model}",
        base_url=f"http://127.0.0.1:{server.server_address[1]}/v1",
    )
    return topics._titles("dough oven", options, where="litelong.topics")


def test_a_server_turns_the_words_of_a_cluster_into_topics(server):
    found = topics._distinct(titles(server))
    assert found == ["Bread ovens of Rome", "Sourdough"]
    (body,) = server.asked
    assert body["model"] == "small"
    assert "dough oven" in body["messages"][0]["content"]


def test_an_answer_without_topics_is_refused(server):
    with pytest.raises(RecipeError) as caught:
        titles(server, "broken")
    assert caught.value.where == "litelong.topics"
    assert caught.value.value == "openai:broken"


def recipe_with(tmp_path, **litelong):
    (tmp_path / "c.jsonl").write_text('{"text": "a house"}\n')
    return Recipe.from_dict(
        {
            "run_dir": str(tmp_path / "run"),
            "ingest": {"sources": [{"path": str(tmp_path / "c.jsonl")}]},
            "tokenizer": {"train": 300},
            "compose": {"method": "litelong"},
            "litelong": litelong,
        }
    )


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"caf\xe9"])
def test_a_file_without_topics_is_refused_before_the_run(tmp_path, content):
    from nextlong import pipeline
    from nextlong.checks import Corpus

    path = tmp_path / "topics.txt"
    if content is not None:
        path.write_bytes(content)
    recipe = recipe_with(tmp_path, topics=str(path))
    with pytest.raises(RecipeError) as caught:
        pipeline.route(recipe, Corpus(recipe).files)
    assert caught.value.where == "litelong.topics"
    assert caught.value.value == str(path)


def test_a_topics_file_is_found_from_the_folder_of_the_recipe(tmp_path, monkeypatch):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "topics.txt").write_text("rye bread\n")
    (tmp_path / "recipes" / "c.jsonl").write_text('{"text": "a house"}\n')
    (tmp_path / "recipes" / "r.yaml").write_text(
        "run_dir: run\ningest: {sources: [{path: c.jsonl}]}\ntokenizer: {train: 300}\n"
        "compose: {method: litelong}\nlitelong: {topics: topics.txt}\n"
    )
    monkeypatch.chdir(tmp_path)
    recipe = Recipe.load("recipes/r.yaml")
    assert recipe.options.topics == "recipes/topics.txt"
