"""Export: write composed sequences as files that trainers read.

In:  SEQUENCES (references) and what they refer to.
Out: one file a shard in the asked format; each format is a room under `formats/`.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nextlong.formats import jsonl, parquet
from nextlong.stages.resolve import Corpus, SpecialIds, resolve
from nextlong.stages.tokens import TokenStore

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def export_shard(
    out: Path,
    *,
    sequences: Path,
    take: int,
    format: Literal["parquet", "jsonl"],  # noqa: A002
    corpus: Corpus,
    tokens: TokenStore,
    special: SpecialIds,
    tokenizer: Path,
    row_group_bytes: int,
) -> dict[str, Any]:
    """Write the first `take` sequences of a SEQUENCES file as `{out}.{format}`."""
    loaded = _tokenizer(tokenizer)
    blocks = resolve(sequences, take=take, corpus=corpus, tokens=tokens, special=special, tokenizer=loaded)
    path = Path(f"{out}.{format}")
    if format == "parquet":
        rows = parquet.write(path, blocks, row_group_bytes=row_group_bytes)
    else:
        texts = {
            role: loaded.decode(ids.tolist(), skip_special_tokens=False) for role, ids in special.by_role().items()
        }
        rows = jsonl.write(path, blocks, text_of=corpus.texts, special_text=texts)
    return {"sequences": rows}


@lru_cache(maxsize=1)
def _tokenizer(path: Path) -> Tokenizer:
    from nextlong.stages.fast_bpe import read_tokenizer

    return read_tokenizer(path)
