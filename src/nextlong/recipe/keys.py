"""Recipe keys: the sections of a recipe, one frozen model each.

Each number of the paper (arXiv 2501.12766) is a key here, with the paper's value as default or in a preset under
`recipes/`. Defaults and meanings stand in the field descriptions, from which `nextlong init` writes its comments.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from nextlong.recipe.lengths import Length, PositiveLength
from nextlong.recipe.methods import METHODS

Auto = Literal["auto"]
Positive = Annotated[int, Field(gt=0)]
Named = Annotated[str, Field(min_length=1)]
_LEAST_CHUNK_CHARS = 16
# Keys of an encoder's section that say how to compute, not what: changing them must not throw vectors away.
HOW_TO_ENCODE = frozenset(
    {"batch_size", "device", "concurrency", "requests_per_minute", "max_attempts", "timeout_s", "api_key_env"}
)
StateName = Annotated[
    str, Field(pattern=r"^[\w+=,][\w.+=,-]*$", max_length=120)
]  # fit for a file's name, and for RUN@name


class MayBePath:
    """Marks a key that names a model or a file, perhaps of this machine; a data set card gives its last name only."""


class Section(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )


class Source(Section):
    """Where documents come from: one path or glob, one name."""

    path: Named = Field(
        description="files, a glob or a folder; any fsspec URL (s3://, gs://, hf://); .jsonl[.gz|.zst], .parquet, "
        "Arrow/HF dataset folders, .txt/.md"
    )
    name: str = Field("", description="the name of the source in every report; by default the path")
    text: str = Field("text", description="the column that holds the text; a.b reads a nested field")
    id: str = Field("id", description="the column that holds your own id; where it is missing: file:line")
    format: Literal["auto", "jsonl", "parquet", "arrow", "text"] = Field(
        "auto", description="by the file name, if auto"
    )
    license: str = Field("", description="of the texts, as SPDX spells it; stated on the data set card")
    weight: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="relative share of characters among the weighted sources; nothing is repeated, the scarcest sets the scale",
    )
    max_documents: Positive | None = Field(None, description="keep at most this many documents, drawn by keyed hash")
    max_chars: Positive | None = Field(None, description="keep at most this many characters, drawn by keyed hash")

    @property
    def label(self) -> str:
        """The name that documents carry in their `source` column."""
        return self.name or self.path


class Ingest(Section):
    """files → documents."""

    sources: tuple[Source, ...] = Field(description="at least one")
    max_reject_share: Annotated[float, Field(ge=0, le=1)] = Field(
        0.01, description="stop when more than this share of the records cannot be read"
    )
    max_document_chars: Positive = Field(10_000_000, description="longer documents are rejected")
    dedup: Literal["exact", "minhash"] = Field(
        "exact", description="leave out equal documents, or (minhash; needs nextlong[dedup]) nearly equal ones too"
    )
    dedup_threshold: Annotated[float, Field(gt=0, le=1)] = Field(
        0.8, description="minhash: share of the five-word runs of two documents that makes them nearly equal"
    )
    shard_mb: Annotated[float, Field(gt=0)] | Auto = Field(
        "auto", description="MB of text in a shard; auto: total / 32, between 1 and 128"
    )

    @model_validator(mode="after")
    def _some_source(self) -> Self:
        if not self.sources:
            raise ValueError("sources is empty; name at least one file, folder or URL")
        labels = [source.label for source in self.sources]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"sources share the name {twice[0]!r}; give each its own name")
        return self


class Ray(Section):
    """The cluster of executor=ray; the run directory lies under the same path on all its nodes."""

    address: Named | None = Field(
        None, description="of a running cluster: host:port, auto or ray://…; null starts one on this machine"
    )
    retries: Annotated[int, Field(ge=0)] = Field(
        3, description="how often a task is run again whose worker or node was lost"
    )


class Chunk(Section):
    """documents → chunks."""

    max_chars: PositiveLength = Field(2048, description="granularity s of the paper, in characters; at least 16")
    length: Literal["slice", "paper"] = Field(
        "slice",
        description="what counts against max_chars: the slice, or (paper) its paragraphs without the newlines between",
    )
    oversize: Literal["split", "keep"] = Field(
        "split", description="a paragraph over max_chars: cut at sentence ends, then words; or (paper) kept whole"
    )

    @field_validator("max_chars")
    @classmethod
    def _some_words(cls, value: int) -> int:
        if value < _LEAST_CHUNK_CHARS:
            raise ValueError(
                f"max_chars is {value}, but a chunk of fewer than {_LEAST_CHUNK_CHARS} characters holds no words that others could "
                "be similar to, and every pair of chunks is compared; raise it"
            )
        return value


class Decontaminate(Section):
    """evaluation texts → chunks that share a run of words with one are left out."""

    files: tuple[Named, ...] = Field((), description="evaluation files: json, jsonl, csv, tsv, txt, md; paths or URLs")
    ngram: Positive = Field(13, description="so many words in a row; shorter texts count as a whole")

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        return {"files": value} if isinstance(value, list | tuple) else value

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if twice := sorted({file for file in self.files if self.files.count(file) > 1}):
            raise ValueError(f"files names {twice[0]!r} twice; name it once")
        return self


class Lsa(Section):
    """The built-in encoder: TF-IDF and truncated SVD, fitted on a sample of the chunks."""

    dimensions: Annotated[int, Field(ge=2)] = Field(
        256, description="width of the vectors; less where the sample is small"
    )
    fit_chunks: Positive = Field(16_384, description="size of the random sample of chunks that the fit sees")
    max_terms: Positive = Field(50_000, description="vocabulary: the most frequent terms of the sample")


class SentenceTransformers(Section):
    """Options of `encoder.model: sentence-transformers:<name or path>`."""

    batch_size: Positive = Field(64, description="chunks encoded at a time")
    max_tokens: PositiveLength | None = Field(
        None, description="cut chunks to this many tokens; default: the model's own limit"
    )
    prompt: str | None = Field(None, description="put before every chunk, for models trained with one")
    task: str | None = Field(
        None, description="passed on to models that take one, e.g. jina-embeddings-v3: text-matching"
    )
    trust_remote_code: bool = Field(
        False, description="run Python code that comes with the model; only if you trust it"
    )
    revision: str | None = Field(None, description="branch, tag or commit of a hub name; default: its main branch")
    device: str | None = Field(None, description="cuda, cuda:1, cpu, mps; default: the best there is")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="auto: bfloat16 on a GPU that has it, and on a processor where a trial finds it faster"
    )
    backend: Literal["torch", "onnx", "openvino"] = Field(
        "torch", description="what runs the model; onnx and openvino: on a processor, in float32"
    )

    @model_validator(mode="after")
    def _backend_suits(self) -> Self:
        if self.backend != "torch" and (self.dtype not in ("auto", "float32") or self.device not in (None, "cpu")):
            raise ValueError(
                f"backend is {self.backend!r}, which runs on a processor in float32, beside dtype={self.dtype!r} and "
                f"device={self.device!r}; leave these out, or take backend: torch"
            )
        return self


class OpenAI(Section):
    """Options of `encoder.model: openai:<model>`: any server that speaks the OpenAI embeddings API."""

    base_url: str = Field("https://api.openai.com/v1", description="up to and without /embeddings")
    api_key_env: str = Field(
        "OPENAI_API_KEY", description="the environment variable that holds the key; none is sent if unset"
    )
    batch_size: Positive = Field(64, description="chunks in a request")
    dimensions: Positive | None = Field(
        None, description="asked of the server, where the model can shorten its vectors"
    )
    concurrency: Positive = Field(8, description="requests under way at once")
    requests_per_minute: Positive | None = Field(None, description="never send more; default: as the server allows")
    max_attempts: Positive = Field(8, description="tries of a request before the run stops; what is embedded is kept")
    timeout_s: Annotated[float, Field(gt=0)] = Field(120.0, description="seconds to wait for an answer")


class Encoder(Section):
    """chunks → vectors."""

    model: str = Field("lsa", description="lsa | sentence-transformers:<name or path> | openai:<model>")
    lsa: Lsa = Lsa()
    sentence_transformers: SentenceTransformers = SentenceTransformers()
    openai: OpenAI = OpenAI()

    @property
    def kind(self) -> str:
        """`lsa`, `sentence-transformers` or `openai`."""
        return self.model.partition(":")[0]

    @property
    def name(self) -> str:
        """What follows the colon: the model's name or path."""
        return self.model.partition(":")[2]

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.kind not in ("lsa", "sentence-transformers", "openai") or (self.kind == "lsa") != (not self.name):
            raise ValueError(
                f"model is {self.model!r}; it must be 'lsa', 'sentence-transformers:<name or path>' or 'openai:<model>'"
            )
        return self


class Mine(Section):
    """meta-chunks → candidates."""

    fetch: Positive | Auto = Field(
        "auto",
        description="neighbours kept for each meta-chunk (the paper fetches 512); auto: enough for target_tokens, at least 1024",
    )
    pool: Positive = Field(
        512, description="the nearest among which compose.negatives: random-retrieved and tail choose"
    )
    near_copies: Annotated[float, Field(gt=0, le=1)] | None = Field(
        0.8,
        description="no negative shares this much of its words with its meta-document or another negative; null: as they come",
    )
    max_similarity: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="no negative has a higher cosine to its meta-chunk"
    )

    def screened(self, negatives: str) -> float | None:
        """Return `near_copies`, None where repeating is the point."""
        return None if negatives == "self-repeat" else self.near_copies


class Tokenizer(Section):
    """text → token ids; exactly one of `source` and `train`."""

    source: str | None = Field(None, description="a tokenizer.json, a folder with one, or a hub name")
    train: Annotated[int, Field(ge=300)] | None = Field(
        None, description="train a byte-level BPE of this many entries on the corpus"
    )
    revision: str = Field("main", description="of a hub name")
    bos: str | None = Field(None, description="this special token before each sequence, counted in target_tokens")
    eos: str | None = Field(None, description="this special token after each sequence, counted in target_tokens")
    chars_per_token: Annotated[float, Field(gt=0)] | Auto = Field(
        "auto", description="E of the paper; auto: measured on the corpus"
    )
    engine: Literal["auto", "reference"] = Field(
        "auto",
        description="auto: fastokens, some forty times as fast, where its ids are those of the reference (tokenizers)",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.source is None) == (self.train is None):
            raise ValueError(
                "give either source (a tokenizer.json or a hub name) or train (a vocabulary size), and null for the other "
                "(--set tokenizer.train=null beside --set tokenizer.source=…)"
            )
        return self


class Compose(Section):
    """candidates → sequences."""

    method: str = Field("nextlong", description=f"which documents make one sequence: {' | '.join(METHODS.built_in)}")
    sequences: Positive | Literal["all"] = Field(100, description="how many; all: one from every eligible document")
    target_tokens: Annotated[Length, Field(ge=2, lt=2**31)] = Field(
        131_072, description="T of the paper: the exact length of each sequence; 128k and 64K count 1,024s"
    )
    fit: Literal["exact", "paper"] = Field(
        "exact",
        description="exact: share the token budget, cut only the last negative; paper: k by formula, cut at T, drop if shorter",
    )
    position: Literal["head", "tail", "random"] = Field(
        "head", description="where a meta-chunk stands among its negatives: head | tail | random"
    )
    negatives: Literal["top", "random-retrieved", "tail", "random-corpus", "self-repeat"] = Field(
        "top",
        description="which candidates serve: top | random-retrieved | tail | random-corpus | self-repeat (the paper's ablation)",
    )
    max_uses: Positive | None = Field(
        None, description="a chunk is a negative in at most this many sequences of the data set"
    )
    draft_factor: Annotated[float, Field(ge=1)] = Field(
        1.5, description="w of the paper: text drafted, as a multiple of what T needs"
    )
    min_meta_chunks: Positive = Field(2, description="documents with fewer chunks are no meta-documents (paper: 1)")
    joint: str = Field("\n", description="between a chunk that does not end in a newline and the next")
    seed: int | None = Field(
        None, description="for the draw of meta-documents and random positions; default: the recipe's seed"
    )

    @field_validator("method")
    @classmethod
    def _known(cls, method: str) -> str:
        if method not in METHODS.built_in and method not in (names := METHODS.names()):
            *others, last = map(repr, names)
            raise PydanticCustomError(
                "literal_error", "Input should be {expected}", {"expected": f"{', '.join(others)} or {last}"}
            )
        return method


class Documents(Section):
    """Vectors of whole documents, for methods that look for similar documents."""

    vector: Literal["mean", "first"] = Field("mean", description="of the chunks' vectors: their mean, or the first")
