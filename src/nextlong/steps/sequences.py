"""Sequences: candidates → drafts → tokens → sequences, as steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nextlong.engine import store
from nextlong.engine.runner import open_done
from nextlong.engine.step import Done, Finished, Step, Task
from nextlong.errors import CorpusError, RunError
from nextlong.recipe import Recipe
from nextlong.stages.compose import Rules, compose_block, compose_capped
from nextlong.stages.draft import DraftRules, draft_block, refer
from nextlong.stages.draft_documents import draft_documents
from nextlong.stages.fit import TOO_LONG
from nextlong.stages.tokenize import Known, tokenize_shard
from nextlong.stages.tokenizer import local_path, prepare_tokenizer
from nextlong.steps.candidates import blocks, document_chars, draws, sequence_limit
from nextlong.steps.exports import check_eod
from nextlong.steps.finished import chunks_of, special_ids, token_store
from nextlong.steps.shingles import shingle_store


def tokenizer_step(recipe: Recipe, ingest: Step, chunk: Step) -> Step:
    """The tokenizer, loaded or trained, and E."""
    source = recipe.tokenizer.source
    config = recipe.tokenizer.model_dump(exclude={"engine"}) | {"joint": recipe.compose.joint, "seed": recipe.seed}
    if source is not None and (path := local_path(source)).is_file():
        config |= {"source": store.hash_file(path), "revision": None}
        # Before anything runs; of a tokenizer that is fetched or trained, as soon as it is there.
        check_eod(recipe, path)

    def tasks(done: Finished) -> list[Task]:
        return [
            partial(
                prepare_tokenizer,
                tokenizer=recipe.tokenizer,
                joint=recipe.compose.joint,
                documents=done["ingest"].files(".documents.arrow"),
                chunks=chunks_of(done).files(".chunks.arrow"),
                seed=recipe.seed,
            )
        ]

    def check(done: Done) -> None:
        check_eod(recipe, done.file(".tokenizer.json"))

    return Step("tokenizer", 3, config, (ingest, chunk), tasks, check=check)


def draft_step(
    recipe: Recipe,
    ingest: Step,
    chunk: Step,
    embed: Step,
    metas: Step,
    mine: Step,
    tokenizer: Step,
    screening: Sequence[Step],
) -> Step:
    """CANDIDATES → DRAFTS of the method nextlong; `screening`, shingles and their weights, finds near-copies."""
    compose = recipe.compose
    config: dict[str, Any] = {
        "target_tokens": recipe.sequence_tokens,
        "draft_factor": compose.draft_factor,
        "fit": compose.fit,
        "negatives": compose.negatives,
        "pool": recipe.mine.pool if compose.negatives in ("random-retrieved", "tail") else 0,
        "near_copies": recipe.mine.screened(compose.negatives),
        "max_similarity": None if compose.negatives == "self-repeat" else recipe.mine.max_similarity,
        "seed": recipe.compose_seed if compose.negatives.startswith("random") else 0,
        "max_chars": recipe.chunk.max_chars,
    }

    def tasks(done: Finished) -> list[Task]:
        ranges = zip(blocks(done["metas"].total("drawn")), done["mine"].files(".candidates.arrow"), strict=True)
        rules = DraftRules(chars_per_token=done["tokenizer"].counts[0]["chars_per_token"], **config)
        measure = (shingle_store(done), done["weights"].file(".weights.npy")) if screening else None
        return [
            partial(
                draft_block,
                metas=done["metas"].file(".metas.npy"),
                first=first,
                last=last,
                candidates=candidates,
                documents=done["ingest"].files(".documents.arrow"),
                tokenizer=done["tokenizer"].file(".tokenizer.json"),
                chunks=chunks_of(done).files(".chunks.arrow"),
                vectors=done["embed"].files(".vectors.npy"),
                measure=measure,
                rules=rules,
            )
            for (first, last), candidates in ranges
        ]

    inputs = (ingest, chunk, embed, metas, mine, tokenizer, *screening)
    return Step("draft", 3, {"method": "nextlong", **config}, inputs, tasks)


def draft_documents_step(recipe: Recipe, documents: Step, source: Step | None, tokenizer: Step) -> Step:
    """Documents, and their neighbours or keywords (`source`), → DRAFTS of the other methods."""
    method: Any = recipe.compose.method
    options: Any = None if method == "standard" else getattr(recipe, method)
    config: dict[str, Any] = {
        "method": method,
        "target_tokens": recipe.sequence_tokens,
        "sequences": sequence_limit(recipe),
        "seed": recipe.compose_seed,
        "options": None if options is None else options.model_dump(),
    }

    def tasks(done: Finished) -> list[Task]:
        return [
            partial(
                draft_documents,
                method=method,
                docs=done["documents"].file(".docs.npy"),
                neighbours=done["neighbours"].files(".candidates.arrow") if "neighbours" in done else (),
                keywords=done["keywords"].files(".keywords.arrow") if "keywords" in done else (),
                drafted_chars=document_chars(recipe, done["tokenizer"].counts[0]["chars_per_token"]),
                sequences=sequence_limit(recipe),
                options=options,
                seed=recipe.compose_seed,
            )
        ]

    def check(done: Done) -> None:
        if not done.total("drafts"):
            raise CorpusError(
                f"compose.method={method} finds no sequence of compose.target_tokens={recipe.compose.target_tokens:,}: "
                "the documents that it puts together are too few or too short; add documents or lower it"
            )

    inputs = (documents, tokenizer) if source is None else (documents, source, tokenizer)
    return Step("draft", 2, config, inputs, tasks, check=check)


def refer_step(recipe: Recipe, chunk: Step, draft: Step, *, attempt: int) -> Step:
    """DRAFTS → the chunks that they name."""
    limit = sequence_limit(recipe, attempt)

    def tasks(done: Finished) -> list[Task]:
        drafts, chunks = done["draft"].files(".drafts.arrow"), chunks_of(done).files(".chunks.arrow")
        return [partial(refer, drafts=drafts, chunks=chunks, limit=limit)]

    return Step("refer", 1, {"limit": limit}, (chunk, draft), tasks)


def tokens_step(recipe: Recipe, ingest: Step, chunk: Step, tokenizer: Step, named: Step) -> Step:
    """Named chunks → TOKENS; what earlier drafts of the run directory named is copied."""
    version = 2
    config = {"engine": recipe.tokenizer.engine}

    def tasks(done: Finished) -> list[Task]:
        inputs = {step.name: step.fingerprint for step in (ingest, chunk, tokenizer)}
        earlier = _earlier_tokens(done["tokenizer"].folder.parent, inputs, version=version, config=config)
        shards = zip(
            done["ingest"].files(".documents.arrow"),
            chunks_of(done).files(".chunks.arrow"),
            done["refer"].files(".rows.npy"),
            strict=True,
        )
        path = done["tokenizer"].file(".tokenizer.json")
        return [
            partial(
                tokenize_shard,
                documents=documents,
                chunks=chunks,
                rows=rows,
                tokenizer=path,
                engine=recipe.tokenizer.engine,
                known=[files[shard] for files in earlier],
            )
            for shard, (documents, chunks, rows) in enumerate(shards)
        ]

    def check(done: Done) -> None:
        wrong = {shard: counts["mismatches"] for shard, counts in enumerate(done.counts) if counts["mismatches"]}
        if wrong:
            told = ", ".join(f"{count:,} of shard {shard}" for shard, count in wrong.items())
            raise RunError(
                f"the fast tokenizer gave other ids than the reference for some of the chunks that are checked ({told}); "
                "run again with --set tokenizer.engine=reference, and please report it with your tokenizer's name"
            )

    return Step("tokens", version, config, (ingest, chunk, tokenizer, named), tasks, check=check)


def _earlier_tokens(
    run_dir: Path, inputs: Mapping[str, str], *, version: int, config: Mapping[str, Any]
) -> list[list[Known]]:
    """Return rows, offsets and ids of each shard, for each finished TOKENS that has the same ids for the same rows."""
    found = []
    for folder in sorted(run_dir.glob("[0-9][0-9]-tokens-*")):
        try:
            tokens = open_done("tokens", folder)
            manifest = tokens.manifest
            same = manifest["version"] == version and manifest["config"] == config and not tokens.total("mismatches")
            if not same or not inputs.items() <= manifest["inputs"].items():
                continue
            (named,) = run_dir.glob(f"[0-9][0-9]-refer-{manifest['inputs']['refer']}")
            rows = open_done("refer", named).files(".rows.npy")
            found.append(list(zip(rows, tokens.files(".offsets.npy"), tokens.files(".ids.npy"), strict=True)))
        except (RunError, ValueError):
            continue  # unfinished, harmed or half removed: these rows are tokenized anew
    return found


def compose_step(recipe: Recipe, chunk: Step, tokenizer: Step, draft: Step, named: Step, tokens: Step) -> Step:
    """DRAFTS and token counts → SEQUENCES."""
    compose = recipe.compose
    config: dict[str, Any] = {
        "method": compose.method,
        "target_tokens": recipe.sequence_tokens,
        "fit": compose.fit,
        "position": compose.position,
        "reuse": "free" if compose.negatives == "self-repeat" else "never",
        "seed": recipe.compose_seed,
    }
    max_uses = compose.max_uses if compose.method == "nextlong" else None

    def tasks(done: Finished) -> list[Task]:
        special = special_ids(done)
        rules = Rules(
            joint_tokens=len(special.joint), bos_tokens=len(special.bos), eos_tokens=len(special.eos), **config
        )
        drafts, (counts,) = done["draft"].files(".drafts.arrow"), done["refer"].counts
        common: dict[str, Any] = {
            "tokens": token_store(done),
            "chunks": chunks_of(done).files(".chunks.arrow"),
            "rules": rules,
        }
        if max_uses is not None:
            return [partial(compose_capped, drafts=drafts, take=counts["take"], max_uses=max_uses, **common)]
        return [
            partial(compose_block, drafts=path, take=take, **common)
            for path, take in zip(drafts, counts["take"], strict=True)
        ]

    config_and_cap = config | {"max_uses": max_uses}
    return Step("compose", 3, config_and_cap, (chunk, tokenizer, draft, named, tokens), tasks)


def too_few(recipe: Recipe, done: Finished, *, attempt: int) -> str:
    """Say that an attempt gave too few sequences, why, and what the next one does."""
    (counts,) = done["metas"].counts
    drawn, eligible = counts["drawn"], counts["eligible"]
    lost = dropped(done)
    composed = done["compose"].total("sequences")
    told = "".join(f"; {count:,} dropped: {reason}" for reason, count in lost.items())
    more = min(draws(recipe, attempt + 1) or eligible, eligible)
    goes_on = f"drawing {more:,} of {eligible:,}" if more > drawn else "trying more of those drawn"
    return (
        f"compose: {composed:,} of {recipe.compose.sequences:,} sequences from {composed + sum(lost.values()):,} "
        f"documents{told}; {goes_on}"
    )


def dropped(done: Finished) -> dict[str, int]:
    """Return how many drafts became no sequence, by reason."""
    return dict(sum((Counter(done[name].total_by_reason("dropped")) for name in ("draft", "compose")), Counter[str]()))


def refuse_nothing(recipe: Recipe, done: Finished) -> None:
    """Raise CorpusError, with the reasons and the cure, if the recipe gave no sequence at all."""
    compose = done["compose"]
    if compose.total("sequences"):
        return
    reasons = dropped(done)
    told = "; ".join(f"{count:,} dropped: {reason}" for reason, count in reasons.items())
    asked = f"compose.target_tokens={recipe.compose.target_tokens:,}"
    if set(reasons) == {TOO_LONG}:
        raise CorpusError(
            f"{asked} holds none of the documents beside any negative ({told}); raise it, or add shorter documents"
        )
    longest = max((counts["longest_dropped_tokens"] for counts in compose.counts), default=0)
    raise CorpusError(
        f"{asked} but the longest sequence that this corpus gives is {longest:,} tokens ({told}); add documents or "
        f"lower it{_or_allow_copies(recipe)}"
    )


def _or_allow_copies(recipe: Recipe) -> str:
    threshold = recipe.mine.screened(recipe.compose.negatives) if recipe.compose.method == "nextlong" else None
    return "" if threshold is None else f", or raise mine.near_copies={threshold:g} (null keeps them all)"
