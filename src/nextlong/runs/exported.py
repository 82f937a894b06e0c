"""Exported: what a recipe exported, as its cards, records and summaries read it.

In:  the recipe, the runs that the rows come from, and the finished steps. Out: the rows
and statistics, the files and tokens of each format, and the warnings about them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from nextlong.artifacts import variant_records
from nextlong.artifacts.results import ShardResult
from nextlong.engine.step import Artifact, Artifacts
from nextlong.export import steps as export_steps
from nextlong.export.arrange import RowsResult
from nextlong.export.formats.base import format_of
from nextlong.export.publish import ExportFile
from nextlong.recipe import Recipe
from nextlong.runs import data_folder
from nextlong.runs.run import Run
from nextlong.runs.statistics.measure import read
from nextlong.runs.statistics.row_warnings import of_files, of_rows
from nextlong.runs.statistics.stats import DataWarning, Stats

_MAX_MIX_NAME_CHARS: Final = 80  # a file name may have 255 bytes


@dataclass(frozen=True)
class Exported:
    """What a recipe exported: the runs of its rows, and the finished steps by name."""

    recipe: Recipe
    runs: Sequence[Run]
    done: Artifacts

    @property
    def is_mix(self) -> bool:
        """Whether the rows are of several runs, or of some components of one."""
        config = self.done["rows"].manifest["config"]
        return len(self.runs) > 1 or "mixture" in config

    @property
    def folder(self) -> Path:
        """The folder of the formats' folders.

        That is `RUN/data`, or the folder of a variant or a mix in it.
        """
        if not self.is_mix:
            return data_folder.folder_of(self.runs[0].variant)
        joined = "+".join(run.name for run in self.runs)
        names = re.sub(r"[^\w.=,+-]+", "-", joined)[:_MAX_MIX_NAME_CHARS]
        rows = self.done["rows"].manifest["fingerprint"]
        mix = f"{data_folder.MIX}{names}-{rows[:8]}"
        return self.runs[0].path / variant_records.DATA / mix

    @property
    def room(self) -> int:
        """The tokens that a row can hold.

        Those of the longest sequence where sequences are not packed.
        """
        longest = max(run.recipe.sequence_tokens for run in self.runs)
        return self.recipe.export.pack or longest

    @property
    def version(self) -> str:
        """The version of nextlong that wrote the rows."""
        versions = self.done["rows"].manifest["versions"]
        return str(versions.get("nextlong", "not installed as a package"))

    @cached_property
    def rows(self) -> RowsResult:
        """The rows of each split."""
        return self.done["rows"].result(RowsResult)

    @cached_property
    def stats(self) -> Stats | None:
        """The statistics of the run; None for a mix."""
        return None if self.is_mix else read(self.done)

    @property
    def below(self) -> dict[str, str]:
        """The folder of each split below that of its format.

        Its own where there are several.
        """
        splits = export_steps.splits_of(self.recipe.export)
        if len(splits) == 1:
            return dict.fromkeys(splits, "")
        return {split: f"{split}/" for split in splits}

    def split_files(self, name: str) -> Mapping[str, str]:
        """Return the text of each file by which a format's folder names its splits."""
        describe_splits = format_of(name).describe_splits
        if len(self.below) == 1 or describe_splits is None:
            return {}
        return describe_splits(list(self.below))

    def step(self, name: str, split: str) -> Artifact:
        """Return the step that wrote one split of a format."""
        return self.done[export_steps.step_name(name, split)]

    def tokens(self, name: str, split: str) -> int:
        """Return the tokens in the files of a split, with those the format adds."""
        shards = self.step(name, split).results(ShardResult)
        # A format that adds no tokens does not count them.
        counted = [shard.tokens for shard in shards if shard.tokens is not None]
        if not counted:
            return self.rows.splits[split].tokens
        return sum(counted)

    def warnings(self, *formats: str) -> list[DataWarning]:
        """Return the warnings about the rows, and about the files of some formats."""
        lengths = {run.recipe.sequence_tokens for run in self.runs}
        splits = self.rows.splits
        warnings = list(
            of_rows(
                splits,
                lengths=lengths,
                pack=self.recipe.export.pack,
                runs=[run.name for run in self.runs],
            )
        )
        for name in formats:
            for split, arranged in splits.items():
                warnings += of_files(
                    name,
                    split=split,
                    added_tokens=self.tokens(name, split) - arranged.tokens,
                    target_tokens=max(lengths),
                )
        return warnings

    def files(self, name: str) -> list[ExportFile]:
        """Return the files of a format, all its splits, by name in its folder."""
        files = []
        for split, below in self.below.items():
            step = self.step(name, split)
            for part in step.manifest["parts"]:
                for file, entry in part["files"].items():
                    files.append(
                        ExportFile(
                            step.folder / file,
                            f"{below}{file}",
                            entry["bytes"],
                            entry["xxh3"],
                        )
                    )
        return files


def fingerprints_of(run: Run) -> dict[str, str]:
    """Return the fingerprint of each step that exports of a run read, by its name."""
    return {step.name: step.fingerprint for step in export_steps.read_steps(run.steps)}
