"""Recipe keys of the encoder: which one turns chunks into vectors, and a section of options for each kind."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, JsonValue, model_validator

from nextlong.recipe.keys import MayBePrivate, Operational, Positive, Section
from nextlong.recipe.lengths import PositiveLength


class EncoderSection(Section):
    """Options of one kind of encoder; `names_model`: whether `encoder.model` names a model behind a colon."""

    names_model: ClassVar[bool] = True


class Lsa(EncoderSection):
    """The built-in encoder: TF-IDF and truncated SVD, fitted on a sample of the chunks."""

    names_model: ClassVar[bool] = False

    dimensions: Annotated[int, Field(ge=2)] = Field(
        256, description="width of the vectors; less where the sample is small"
    )
    fit_chunks: Positive = Field(16_384, description="size of the random sample of chunks that the fit sees")
    max_terms: Positive = Field(50_000, description="vocabulary: the most frequent terms of the sample")


class SentenceTransformers(EncoderSection):
    """Options of `encoder.model: sentence-transformers:<name or path>`."""

    batch_size: Annotated[Positive, Operational()] = Field(64, description="chunks encoded at a time")
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
    device: str | None = Field(
        None, description="cuda, cuda:1, cpu, mps; default: the best there is; beside dtype: auto it sets the precision"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="auto: bfloat16 on a GPU that has it, and on a processor where a trial finds it faster"
    )
    backend: Literal["torch", "onnx", "openvino"] = Field(
        "torch", description="what runs the model; onnx and openvino: on a processor, in float32"
    )

    def identity(self) -> dict[str, JsonValue]:
        """Return what sets the numbers: of the device its kind, and that only where it chooses the precision."""
        plain = super().identity()
        device = plain.pop("device")
        is_chosen = isinstance(device, str) and self.dtype == "auto" and self.backend == "torch"
        return plain | ({"device": str(device).partition(":")[0]} if is_chosen else {})

    @model_validator(mode="after")
    def _backend_suits(self) -> Self:
        if self.backend != "torch" and (self.dtype not in ("auto", "float32") or self.device not in (None, "cpu")):
            raise ValueError(
                f"backend is {self.backend!r}, which runs on a processor in float32, beside dtype={self.dtype!r} and "
                f"device={self.device!r}; leave these out, or take backend: torch"
            )
        return self


class OpenAI(EncoderSection):
    """Options of `encoder.model: openai:<model>`: any server that speaks the OpenAI embeddings API."""

    base_url: Annotated[str, MayBePrivate()] = Field(
        "https://api.openai.com/v1", description="up to and without /embeddings"
    )
    api_key_env: Annotated[str, Operational()] = Field(
        "OPENAI_API_KEY", description="the environment variable that holds the key; none is sent if unset"
    )
    batch_size: Annotated[Positive, Operational()] = Field(64, description="chunks in a request")
    dimensions: Positive | None = Field(
        None, description="requested from the server, where the model can shorten its vectors"
    )
    concurrency: Annotated[Positive, Operational()] = Field(8, description="requests under way at once")
    requests_per_minute: Annotated[Positive | None, Operational()] = Field(
        None, description="never send more; default: as the server allows"
    )
    max_attempts: Annotated[Positive, Operational()] = Field(
        8, description="tries of a request before the run stops; what is embedded is kept"
    )
    timeout_s: Annotated[Annotated[float, Field(gt=0)], Operational()] = Field(
        120.0, description="seconds to wait for an answer"
    )


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

    @property
    def section(self) -> str:
        """The name of the section that holds its options, and of its module."""
        return self.kind.replace("-", "_")

    @property
    def options(self) -> EncoderSection:
        """The section that holds its options."""
        options: EncoderSection = getattr(self, self.section)
        return options

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.section not in set(type(self).model_fields) - {"model"} or self.options.names_model == (not self.name):
            raise ValueError(
                f"model is {self.model!r}; it must be 'lsa', 'sentence-transformers:<name or path>' or 'openai:<model>'"
            )
        return self
