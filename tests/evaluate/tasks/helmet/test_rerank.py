import json
import random
from itertools import islice

from evaluation_data import fact, word_tokenizer, write
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.models.base import TextTokenizer
from nextlong.evaluate.task import Request, all_tasks


def made(name, folder, *, length=8192, samples=6, backend=None):
    request = Request(length, TextTokenizer(backend or word_tokenizer()), DataFiles(folder), samples)
    return list(islice(all_tasks()[name].make(request), samples))


def scored(name, sample, answer):
    task = all_tasks()[name]
    return task.score(answer, sample)[task.metric]


def test_rerank_prompts_and_scores(tmp_path):
    draw = random.Random(5)
    for passages in (50, 10):
        rows = []
        for number in range(30):
            ctxs = [{"id": str(n), "text": fact(draw, n)[0], "label": n % 4} for n in draw.sample(range(100), 4)]
            rows.append({"qid": f"q{number}", "query": f"what {number}", "ctxs": ctxs})
        write(
            tmp_path / f"helmet/msmarco/test_reranking_data_k{passages}_dep3.jsonl",
            "".join(json.dumps(row) + "\n" for row in rows),
        )
    samples = made("msmarco", tmp_path, samples=30)
    assert len(samples) == 30
    for sample in samples:
        assert sample.prompt.count("\nRanking: ") == 3  # the format, and two examples
        assert scored("msmarco", sample, sample.references[0]) == 1.0
        assert scored("msmarco", sample, "none of them") == 0.0
        assert sample.references[0].count(" > ") == 3
