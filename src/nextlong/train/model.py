"""Model: open the data and check them against the model; load it with our attention and our loss; its optimizer; its check.

In:  the recipe.
Out: what every engine needs before a model is loaded: rows, tokenizer, config with the RoPE base set for the rows, and which rows
     each step reads; a causal model of transformers in float32 (autocast does the rest).

All errors in the data are found here, before a device is used. The rows of a step depend only on the seed and the step, so an
interrupted training resumes at the next row, and of the data only a fingerprint is saved.

transformers 5 keeps the RoPE base in `config.rope_parameters["rope_theta"]` and silently ignores `config.rope_theta = …` and
`from_pretrained(rope_theta=…)`. So the base is set there before the model is made: the base of the recipe is the one that the
model computes with, is saved with, and is loaded with.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from nextlong.artifacts.results import TokenizerFiles
from nextlong.artifacts.rows import epoch_order
from nextlong.artifacts.variant_names import flattened
from nextlong.engine import store
from nextlong.errors import CorpusError, RecipeError, RunError, TokenizerError
from nextlong.runs.run import Run
from nextlong.text import counted, first_sentence, why_no_model
from nextlong.train.attention import (
    compile_layers,
    install_positions,
    register_attention,
)
from nextlong.train.loss import install_loss
from nextlong.train.recipe import TrainRecipe
from nextlong.train.rows import (
    TrainingRows,
    on_device,
    packed_batch,
    rows_of,
    step_rows,
)

RECORD: Final = "trainer.json"
COMPILER: Final = "inductor"


@dataclass(frozen=True)
class Prepared:
    """A recipe, the model's `config` with its RoPE base set and the `changes` to it, the rows, and `data`, their fingerprint."""

    recipe: TrainRecipe
    config: PretrainedConfig
    changes: list[str]
    tokenizer: PreTrainedTokenizerBase | None
    rows: TrainingRows
    held_out_rows: TrainingRows | None
    row_tokens: int
    rows_per_step: int
    data: str

    @property
    def out(self) -> Path:
        """The folder of everything that is written."""
        return Path(self.recipe.out).expanduser()

    @property
    def epochs(self) -> float:
        """How many times the training reads the data, rounded up to hundredths."""
        return (
            math.ceil(
                self.recipe.training.steps
                / (len(self.rows) // self.rows_per_step)
                * 100
            )
            / 100
        )

    def micro_batches(self, step: int) -> NDArray[np.int64]:
        """Return the row numbers of a step (from 0), (micro batches, micro_batch_rows); rows that fill no step are skipped."""
        epoch, place = divmod(step, len(self.rows) // self.rows_per_step)
        order = epoch_order(
            len(self.rows), order="shuffled", seed=self.recipe.seed, epoch=epoch
        )
        numbers: NDArray[np.int64] = order[place * self.rows_per_step :][
            : self.rows_per_step
        ]
        return numbers.reshape(-1, self.recipe.training.micro_batch_rows)

    def notes(self) -> list[str]:
        """Describe the changes to the model's config, and the data."""
        rows, held_out = (
            f"{counted(len(self.rows), 'row')} of up to {self.row_tokens:,} tokens",
            self.held_out_rows,
        )
        notes = [
            *self.changes,
            f"data: {rows}, {self.rows_per_step} a step, read {self.epochs:g} times",
        ]
        notes += [
            f"held out: {counted(len(held_out), 'row')}"
            if held_out
            else "held out: nothing (data.validation=0)"
        ]
        if dropped := self.rows.dropped:
            notes.append(
                f"{dropped:,} conversations were filtered out: longer than data.pack"
            )
        return notes

    def write_record(self, folder: Path) -> None:
        """Write which training the weights in `folder` are of: `trainer.json`, for `check_record`."""
        store.write_json(
            folder / RECORD, {"recipe": self.recipe.trained_keys(), "data": self.data}
        )

    def check_record(self, folder: Path) -> None:
        """Raise RunError if the weights in `folder` were trained with other keys than the recipe's, or on other data."""
        if not (folder / RECORD).is_file():
            problem = f"{folder} has checkpoints without {RECORD}, so their training is unknown"
            raise RunError(f"{problem}; choose another `out`")
        record = store.read_json(folder / RECORD)
        then, now = (
            dict(flattened(keys))
            for keys in (record["recipe"], self.recipe.trained_keys())
        )
        if changed := [
            f"{key} was {then.get(key)!r} and is {now[key]!r}"
            for key in now
            if then.get(key) != now[key]
        ]:
            differences = "; ".join(changed[:3])
            cure = "restore these values, or choose another `out`"
            raise RunError(
                f"{folder} was trained with another recipe: {differences}; {cure}"
            )
        if record["data"] != self.data:
            problem = f"the training data have changed since {folder} was saved: the runs hold other sequences"
            raise RunError(
                f"{problem}; restore them, or choose another `out` to start over"
            )

    def begin(self, *, resumes: bool) -> None:
        """Write recipe and record to `out`. Raises RunError if training `resumes` from checkpoints of another training."""
        self.out.mkdir(parents=True, exist_ok=True)
        if resumes:
            self.check_record(self.out)
        self.write_record(self.out)
        store.write_file(self.out / "recipe.yaml", self.recipe.dump())


def prepare(recipe: TrainRecipe) -> Prepared:
    """Open the data and check them against the model. Raises NextlongError."""
    data, run_tokenizer, vocabulary = recipe.data, None, None
    if data.runs:
        run_tokenizer = TokenizerFiles.of(Run(data.runs[0]).steps).tokenizer
        vocabulary = int(Tokenizer.from_file(str(run_tokenizer)).get_vocab_size())
    config = config_of(recipe, vocabulary=vocabulary)
    tokenizer = _tokenizer_of(
        recipe, run_tokenizer=run_tokenizer, vocabulary=config.vocab_size
    )
    takes, held_out = (
        {"attention": recipe.attention, "vocabulary": config.vocab_size},
        None,
    )
    rows = replace(rows_of(data, split="train", tokenizer=tokenizer), **takes)
    if data.validation:
        try:
            held_out = replace(
                rows_of(data, split="validation", tokenizer=tokenizer), **takes
            )
        except CorpusError as error:
            raise CorpusError(f"data.validation={data.validation:g}: {error}") from None
        if held_out.row_tokens > rows.row_tokens and not data.pack:
            raise RecipeError(
                "held-out rows are longer than those to train on; use runs of one length, or data.pack"
            )
    row_tokens = data.pack or rows.row_tokens
    rows_per_step = step_rows(recipe, rows=len(rows), row_tokens=row_tokens)
    # Positions count to the end of the longest document.
    longest = rows.row_tokens if recipe.attention == "row" else rows.sequence_tokens
    changes = _set_rope_base(config, recipe, max_tokens=longest)
    return Prepared(
        recipe,
        config,
        changes,
        tokenizer,
        rows,
        held_out,
        row_tokens,
        rows_per_step,
        rows.fingerprint,
    )


def config_of(recipe: TrainRecipe, *, vocabulary: int | None) -> PretrainedConfig:
    """Return the config of the model before anything is loaded. Raises RecipeError for a folder without a text model."""
    scratch, path = recipe.model.scratch, recipe.model.path
    if scratch is None:
        assert path is not None, "the recipe names one of them"
        if why := why_no_model(path):
            raise RecipeError(f"model.path={path!r} {why}")
        try:
            config = transformers.AutoConfig.from_pretrained(path)
        except (OSError, ValueError) as error:
            problem = f"model.path={path!r} is not a model that transformers can load ({first_sentence(error)})"
            raise RecipeError(
                f"{problem}; use a folder with config.json and weights"
            ) from None
        if config.get_text_config() is not config:
            kind = f"a multimodal model ({config.model_type}), and this loop trains text models"
            raise RecipeError(
                f"model.path={path!r} is {kind}; save its language model in a folder of its own"
            )
        return config
    if scratch.vocabulary is None and vocabulary is None:
        problem = "model.scratch.vocabulary=null takes the vocabulary of the run's tokenizer, and there is no run"
        raise RecipeError(f"{problem}; set the number of ids in the data")
    widths = scratch.model_dump(include={"hidden_size", "intermediate_size"})
    heads = {
        "num_attention_heads": scratch.heads,
        "num_key_value_heads": scratch.key_value_heads,
    }
    ids, layers = scratch.vocabulary or vocabulary, scratch.layers
    return transformers.LlamaConfig(
        vocab_size=ids,
        num_hidden_layers=layers,
        tie_word_embeddings=True,
        **widths,
        **heads,
    )


def _set_rope_base(
    config: PretrainedConfig, recipe: TrainRecipe, *, max_tokens: int
) -> list[str]:
    """Set RoPE base and longest document in a config, and return notes. Raises RecipeError where the model cannot be extended."""
    base, replaces = recipe.model.rope_base, recipe.model.rope_scaling == "replace"
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict) or "rope_theta" not in parameters:
        longest = getattr(config, "max_position_embeddings", None) or getattr(
            config, "n_positions", None
        )
        if base is not None:
            raise RecipeError(
                f"model.rope_base={base:g} but {config.model_type} has no single RoPE base; leave it out"
            )
        if longest is not None and max_tokens > longest:
            problem = f"rows have {max_tokens:,} tokens, and {config.model_type} cannot be extended beyond {longest:,}"
            raise RecipeError(
                f"{problem}; use shorter rows or a model with rotary positions"
            )
        return [f"positions: {config.model_type}'s own"]
    notes, kind, before = [], parameters["rope_type"], parameters["rope_theta"]
    if kind != "default" and replaces:
        for key in parameters.keys() - {"rope_theta", "partial_rotary_factor"}:
            del parameters[key]
        parameters["rope_type"] = "default"
        notes.append(
            f"RoPE scaling: {kind} of the source model replaced by the base alone"
        )
    elif kind != "default":
        notes.append(
            f"RoPE scaling: {kind}, kept from the source model (model.rope_scaling=replace drops it)"
        )
    parameters["rope_theta"] = before if base is None else float(base)
    own = ", the model's own" if base is None else f" (the model's was {before:,.0f})"
    notes.append(f"RoPE base: {parameters['rope_theta']:,.0f}{own}")
    return [*notes, *_raise_longest(config, base=base, max_tokens=max_tokens)]


def _raise_longest(
    config: PretrainedConfig, *, base: float | None, max_tokens: int
) -> list[str]:
    """Make a config allow rows of `max_tokens`, and return notes. Raises RecipeError."""
    longest, kind = config.max_position_embeddings, config.rope_parameters["rope_type"]
    if max_tokens <= longest:
        return []
    if base is None and kind == "default":
        cure = "set model.rope_base (the paper: 200,000,000 for 131,072 tokens), or use shorter rows"
        raise RecipeError(
            f"rows have {max_tokens:,} tokens and the model was made for {longest:,}; {cure}"
        )
    if _is_scaled_by_longest(config, max_tokens=max_tokens):
        reason = f"which RoPE scaling {kind} computes with"
        return [
            f"longest row: {max_tokens:,} tokens; "
            f"max_position_embeddings stays {longest:,}, {reason}"
        ]
    config.max_position_embeddings = max_tokens
    return [f"longest row: {max_tokens:,} tokens (the model's was {longest:,})"]


def _is_scaled_by_longest(config: PretrainedConfig, *, max_tokens: int) -> bool:
    """Return whether another `max_position_embeddings` would change the RoPE.

    `dynamic` stretches from it; `longrope` and `yarn` without a factor derive theirs.
    """
    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        return False
    frequencies_of = ROPE_INIT_FUNCTIONS.get(kind)
    if frequencies_of is None:  # a model's own scaling
        return True
    raised = copy.deepcopy(config)
    raised.max_position_embeddings = max_tokens
    own, own_factor = frequencies_of(config, seq_len=max_tokens)
    other, other_factor = frequencies_of(raised, seq_len=max_tokens)
    return own_factor != other_factor or not torch.equal(own, other)


def write_rope_keys(folder: Path) -> None:
    """Add the RoPE keys of transformers 4 to the config.json of a folder, if it has one.

    transformers 5 writes `rope_parameters` alone. Version 4, and servers that follow it,
    ignore that key: they would silently compute with a base of 10,000.
    """
    path = folder / "config.json"
    if not path.exists():  # adapters alone
        return
    config = store.read_json(path)
    parameters = config.get("rope_parameters")
    if not isinstance(parameters, dict) or "rope_theta" not in parameters:
        return
    scaling = dict(parameters)
    config["rope_theta"] = scaling.pop("rope_theta")
    if "partial_rotary_factor" in scaling:
        config["partial_rotary_factor"] = scaling.pop("partial_rotary_factor")
    kind = scaling.pop("rope_type")
    if config.get("original_max_position_embeddings") is not None:
        # Phi-3's, beside which version 4 refuses it among the parameters.
        scaling.pop("original_max_position_embeddings", None)
    # Version 4 names the type of longrope by its older key, and reads no other.
    scaling["type" if kind == "longrope" else "rope_type"] = kind
    config["rope_scaling"] = None if kind == "default" else scaling
    store.write_json(path, config)


def make_model(
    recipe: TrainRecipe, config: PretrainedConfig, *, is_packed: bool = True
) -> PreTrainedModel:
    """Return the model that a config describes, its RoPE base set, ready to train in main memory.

    `is_packed`: rows may hold several documents. Raises RecipeError.
    """
    _check_kernel(recipe)
    model = load_weights(recipe, config, is_packed=is_packed)
    if recipe.compile == "on":
        compile_layers(model, backend=COMPILER, is_packed=is_packed)
    # Without a GPU everything is in main memory already, and torch cannot pin it.
    offload = recipe.memory.checkpointing == "offload" and accelerator().type != "cpu"
    return ready_to_train(model, recipe, offload=offload)


def _check_kernel(recipe: TrainRecipe) -> None:
    """Raise RecipeError for `varlen` where it cannot run."""
    if recipe.attention_kernel != "varlen":
        return
    found = f"the device is {accelerator().type}, precision {recipe.training.precision}"
    if accelerator().type != "cuda" or recipe.training.precision != "bf16":
        need = "needs an NVIDIA or AMD GPU and training.precision=bf16"
        raise RecipeError(
            f"attention_kernel=varlen {need} ({found}); use attention_kernel=auto"
        )


def ready_to_train(
    model: PreTrainedModel, recipe: TrainRecipe, *, offload: bool = False
) -> PreTrainedModel:
    """Return the model with our loss, and with the recipe's activation checkpointing and adapters.

    `offload`: the inputs of layers, which activation checkpointing keeps for the backward pass, are kept in main memory.
    Raises RecipeError where PEFT is missing.
    """
    is_checkpointed, keys = recipe.memory.checkpointing != "none", recipe.model
    install_loss(model, block_tokens=recipe.memory.loss_block_tokens)
    if is_checkpointed:
        _checkpoint_activations(model, offload=offload)
    if keys.lora_rank is None:
        return model
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise RecipeError(
            "model.lora_rank needs peft; pip install peft, or leave lora_rank at null"
        ) from None
    torch.manual_seed(recipe.seed)
    if is_checkpointed:
        model.enable_input_require_grads()
    lora = LoraConfig(
        r=keys.lora_rank,
        lora_alpha=keys.lora_alpha,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, lora)


def _checkpoint_activations(model: PreTrainedModel, *, offload: bool) -> None:
    """Let each layer keep only its input for the backward pass, in main memory if `offload`."""
    options = {"use_reentrant": False}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(
            activation_checkpointing_kwargs=options, offload=offload
        )
    else:  # its name in older versions of transformers
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs=options, offload=offload
        )


def load_weights(
    recipe: TrainRecipe, config: PretrainedConfig, *, is_packed: bool = True
) -> PreTrainedModel:
    """Return the model with the weights of `model.path`, or with random ones for `model.scratch`. Raises RecipeError."""
    name = register_attention(recipe.attention_kernel, is_packed=is_packed)
    path = recipe.model.path
    if path is None:
        torch.manual_seed(recipe.seed)
        return transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation=name, dtype=torch.float32
        )
    # Trained weights are float32, since AdamW's small updates vanish in bfloat16; frozen ones have the type that they compute with.
    is_frozen = (
        recipe.model.lora_rank is not None and recipe.training.precision == "bf16"
    )
    options = {
        "attn_implementation": name,
        "dtype": torch.bfloat16 if is_frozen else torch.float32,
    }
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            path, config=config, output_loading_info=True, **options
        )
    except (OSError, ValueError) as error:
        cure = "name another folder"
        raise RecipeError(
            f"model.path={path!r} cannot be loaded: {first_sentence(error)}; {cure}"
        ) from None
    if missing := sorted(info["missing_keys"]):
        weights = f"{len(missing):,} weights of {type(model).__name__}"
        lacking = f"{weights}, which would stay random: {', '.join(missing[:3])}"
        cure = "name a folder with all weights of the model that config.json describes"
        raise RecipeError(f"model.path={path!r} lacks {lacking}; {cure}")
    if broken := not_finite(model):
        raise RecipeError(
            f"model.path={path!r}: the weight {broken} holds NaN or infinity; name another folder"
        )
    install_positions(model)
    return model


def not_finite(model: torch.nn.Module) -> str | None:
    """Return the name of a weight that holds a NaN or an infinity, if there is one."""
    return next(
        (
            name
            for name, one in model.named_parameters()
            if not bool(torch.isfinite(one).all())
        ),
        None,
    )


def accelerator() -> torch.device:
    """Return the accelerator of this process, or the CPU if it has none."""
    device = (
        torch.accelerator.current_accelerator()
        if torch.accelerator.is_available()
        else None
    )
    return device or torch.device("cpu")


def autocast(recipe: TrainRecipe, device: torch.device) -> torch.autocast:
    """Return the context in which the model computes: bfloat16 with float32 weights, or float32."""
    return torch.autocast(
        device.type, torch.bfloat16, enabled=recipe.training.precision == "bf16"
    )


def optimizer_for(model: torch.nn.Module, recipe: TrainRecipe) -> torch.optim.Optimizer:
    """Return AdamW over the trainable parameters; norms and biases do not decay."""
    training, groups = recipe.training, []
    for is_matrix, decay in ((True, training.weight_decay), (False, 0.0)):
        parameters = [
            one
            for one in model.parameters()
            if one.requires_grad and (one.ndim >= 2) == is_matrix
        ]
        groups += [{"params": parameters, "weight_decay": decay}] if parameters else []
    betas = (training.beta1, training.beta2)
    return torch.optim.AdamW(
        groups, lr=training.lr, betas=betas, eps=training.eps, fused=True
    )


@contextmanager
def explained_memory_errors(recipe: TrainRecipe) -> Iterator[None]:
    """Turn an out-of-memory error into a RunError that names the next settings to change."""
    try:
        yield
    except (
        RuntimeError
    ) as error:  # OutOfMemoryError is one; the CPU's allocator raises a plain one
        is_of_gpu = isinstance(error, torch.OutOfMemoryError)
        if not is_of_gpu and "can't allocate memory" not in str(error):
            raise
        memory, message = (
            "GPU memory" if is_of_gpu else "memory",
            str(error).split(". ")[0][:120],
        )
        raise RunError(
            f"out of {memory} ({message}); {memory_advice(recipe)}"
        ) from None


def memory_advice(recipe: TrainRecipe) -> str:
    """Return the next settings that reduce the memory of a training."""
    stronger = {"none": "layers", "layers": "offload"}.get(recipe.memory.checkpointing)
    settings = {
        "training.micro_batch_rows=1": recipe.training.micro_batch_rows > 1,
        f"memory.checkpointing={stronger}": stronger is not None,
        "model.lora_rank=16": recipe.model.lora_rank is None,
    }
    unused = [f"set {setting}" for setting, is_unused in settings.items() if is_unused]
    return "; or ".join([*unused[:2], "use several GPUs: --engine torchtitan"])


def _tokenizer_of(
    recipe: TrainRecipe, *, run_tokenizer: Path | None, vocabulary: int
) -> PreTrainedTokenizerBase | None:
    """Return the tokenizer to save beside the weights: the model's own, or the run's for a model from scratch.

    Raises TokenizerError if an id of the runs is not one of the model's `vocabulary` ids, or stands for another word there.
    """
    path, tokenizer = recipe.model.path, None
    if path is not None:
        with suppress(OSError, ValueError, KeyError):
            tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    elif run_tokenizer is not None:
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(run_tokenizer)
        )
    if run_tokenizer is None:
        return tokenizer
    ids, name = (
        Tokenizer.from_file(str(run_tokenizer)).get_vocab(),
        path or "model.scratch",
    )
    advice = f"run the recipe again with tokenizer.source={name}, which reuses its vectors and candidates"
    if (highest := max(ids.values())) >= vocabulary:
        raise TokenizerError(
            f"the runs' tokenizer has ids up to {highest:,}, {name} knows {vocabulary:,}; {advice}"
        )
    known = ids if tokenizer is None else tokenizer.get_vocab()
    if differing := sorted(
        word for word, number in ids.items() if known.get(word) != number
    ):
        first = differing[0]
        words = f"{len(differing):,} of {len(ids):,} words have other ids"
        example = (
            f"{first!r} is {ids[first]}, in the model {known.get(first, 'unknown')}"
        )
        raise TokenizerError(
            f"the runs' tokenizer is not that of {name}: {words} ({example}); {advice}"
        )
    return tokenizer


_BOUNDS: Final = (0, 24, 64)
_TOLERANCES: Final = {
    torch.float32: 1e-4,
    torch.bfloat16: 2e-2,
}  # relative, of the loss


class Leak(NamedTuple):
    """The outputs that changed with a document: its own, which should change, and those of other documents, which must not."""

    moved_inside: int
    moved_outside: int


# The check finds faults that would stay silent, on a small packed batch before the first step. No document may change the outputs
# of another (convolutions and state-space layers read across borders): the first and last token of a document are changed, and
# every output of the other documents must stay the same, bit for bit. And the loss must be the one of the model's own forward pass
# for each document alone (it may scale its logits or add an auxiliary loss that a training loop does not know).


def check_model(
    model: PreTrainedModel,
    recipe: TrainRecipe,
    *,
    device: torch.device,
    is_packed: bool,
) -> str:
    """Describe what was compared. Raises RecipeError if documents of a packed row leak, or if the losses differ."""
    bare = model.get_base_model() if hasattr(model, "peft_config") else model
    bounds = _BOUNDS if is_packed else _BOUNDS[:2]
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(
        bare.config.vocab_size, (1, bounds[-1]), generator=generator
    ).to(device)
    name, name_of_ours = type(bare).__name__, bare.config._attn_implementation
    try:
        if is_packed:
            with autocast(recipe, device):
                moved = measure_leak(bare, ids, bounds, document=0).moved_outside
            if moved:
                problem = (
                    f"see each other: changing one moved {moved} outputs of the next"
                )
                cure = "leave out data.pack, set training.micro_batch_rows=1 and attention=sequence or row"
                raise RecipeError(
                    f"{name} lets the documents of a packed row {problem}; {cure}"
                )
        bare.eval()
        # In float32, where a scaled or an added loss shows best, but for varlen
        # attention, which computes in 16 bits only.
        is_mixed = recipe.attention_kernel == "varlen"
        precision = autocast(recipe, device) if is_mixed else nullcontext()
        with torch.no_grad(), precision:
            # The mean over the predicted tokens of the packed row, by the forward pass that trains.
            ours = float(bare(**on_device(packed_batch(ids, bounds), device)).loss)
            # The same mean by the model's own forward pass with transformers' attention, a document at a time.
            bare.set_attn_implementation("eager")
            total = 0.0
            for first, last in pairwise(bounds):
                document = ids[:, first:last]
                output = bare.own_forward(
                    input_ids=document, labels=document, use_cache=False
                )
                total += float(output.loss) * (last - first - 1)
            own = total / (bounds[-1] - len(bounds) + 1)
        bare.set_attn_implementation(name_of_ours)
        bare.train()
    except (
        ValueError
    ) as error:  # attention or loss that cannot do what this model needs
        raise RecipeError(
            f"{error}; train another model, or with another engine"
        ) from None
    difference = abs(ours - own) / max(abs(own), 1e-6)
    weights = next(bare.parameters()).dtype
    if not difference <= _TOLERANCES[torch.bfloat16 if is_mixed else weights]:
        raise RecipeError(
            f"{name}: the loss of a small batch is {ours:.5f} here and {own:.5f} by the model's own forward pass, which scales "
            "its logits or adds an auxiliary loss that this loop does not compute (for a mixture of experts, set "
            "output_router_logits to false in config.json); or train with another engine"
        )
    leaks = "no leak between documents, " if is_packed else ""
    return f"check: {leaks}relative difference to the loss of the model's own forward pass {difference:.0e}"


def measure_leak(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    bounds: Sequence[int],
    *,
    document: int,
) -> Leak:
    """Change the first and last token of a document (from 0) between `bounds` of a row (1, T); count the outputs that move."""
    first, last = bounds[document], bounds[document + 1]
    changed, was_training, states = input_ids.clone(), model.training, []
    ends = [
        first,
        last - 1,
    ]  # attention remembers the first from afar, a convolution reads the last
    changed[0, ends] = (changed[0, ends] + 1) % model.config.vocab_size
    model.eval()
    with torch.no_grad():
        for ids in (input_ids, changed):
            batch = on_device(packed_batch(ids, bounds), ids.device)
            del batch["labels"]
            states.append(
                model.get_decoder()(**batch, use_cache=False).last_hidden_state
            )
    model.train(was_training)
    moved = (states[0] != states[1]).any(dim=-1)[0]  # (T,)
    inside = int(moved[first:last].sum())
    return Leak(inside, int(moved.sum()) - inside)
