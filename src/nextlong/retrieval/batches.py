"""Batches for a model on a device, tokenized while the device computes the ones before.

In:  texts, and a function that tokenizes a batch of them.
Out: the batches, the longest texts first.

One thread tokenizes some 530 chunks of 314 tokens a second with the tokenizer of
jina-embeddings-v3. An H100 encodes about as many, and ten times as many with a small
model, so a device that waits for its tokens would idle half of the time or more. Here
one thread feeds the tokenizer, whose own threads share each batch and do not hold
Python's lock. It is at most `AHEAD` batches ahead, which bounds the memory.

All texts are sorted by length before they are cut into batches, so a batch holds texts
of nearly equal length and little padding. The longest come first: if memory is too
small, that shows at once.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, Final

import numpy as np

from nextlong.engine.executor import usable_cpus

AHEAD: Final = 16  # batches tokenized and not yet encoded
PAD_TO: Final = 64  # tokens: few shapes, and whole tiles of tensor cores
# Of a tokenizer: 8,000 chunks per second of the slowest kind.
_MAX_THREADS: Final = 16

Features = dict[str, Any]


def tokenized_ahead(
    texts: Sequence[str],
    *,
    batch_size: int,
    tokenize: Callable[[list[str]], Features],
) -> Iterator[tuple[list[int], Features]]:
    """Yield the numbers of the texts of each batch, and the tokenized batch.

    It is what `tokenize` returns. A thread tokenizes the next batches meanwhile.
    """
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    order = np.argsort(-lengths, kind="stable").tolist()
    firsts = range(0, len(texts), batch_size)
    batches = (order[first : first + batch_size] for first in firsts)
    # One thread: a tokenizer of transformers may not be called by two at a time.
    thread = ThreadPoolExecutor(max_workers=1)
    coming: deque[tuple[list[int], Future[Features]]] = deque()

    def begin(count: int) -> None:
        for numbers in islice(batches, count):
            batch = [texts[number] for number in numbers]
            coming.append((numbers, thread.submit(tokenize, batch)))

    try:
        begin(AHEAD)
        while coming:
            numbers, features = coming.popleft()
            begin(1)
            yield numbers, features.result()
    finally:
        thread.shutdown(cancel_futures=True)


def tokenizer_threads(gpus: int) -> int:
    """Return the cores that the tokenizer of one of this machine's GPUs may use."""
    return max(1, min(_MAX_THREADS, usable_cpus() // max(1, gpus)))


def let_tokenizers_use(threads: int) -> None:
    """Let the tokenizers of this process use several threads.

    A worker has one thread (`engine/executor.py`). Rayon reads its number when it is
    first used, so this comes before the first text is tokenized.
    """
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
