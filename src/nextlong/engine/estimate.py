"""Estimate: how the time, disk and memory of a step grow, declared beside the step.

`nextlong plan` tries each step on a sample of the user's own files and takes both rates from there; those declared here stand
in where a sample is too small to tell, and for what no sample can (a server, evaluation files, an index).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nextlong.recipe.amounts import Amounts

Amount = Callable[[Amounts], float]
TRIED = "tried"  # on the sample


def none(amounts: Amounts) -> float:  # noqa: ARG001
    """Return 0."""
    return 0.0


def one(amounts: Amounts) -> float:  # noqa: ARG001
    """Return 1."""
    return 1.0


def per_shard(amounts: Amounts) -> float:
    """Return a task for each shard."""
    return max(1.0, amounts.shards)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """`work` is counted in units of about `seconds` of one core, `disk` in units of about `bytes`.

    `tasks` is how many tasks share the work; `memory` the bytes that one of them holds beyond what every worker does. `rate`
    names the rate that plan measures apart where it is not tried on the sample; "": what is declared counts.
    """

    work: Amount
    seconds: float
    disk: Amount = none
    bytes: float = 0.0
    tasks: Amount = one
    memory: Amount = none
    rate: str = TRIED


# Of a step that declares nothing, as another distribution's may be.
BY_CHUNKS = Estimate(work=lambda amounts: amounts.chunks, seconds=0.0, disk=lambda amounts: amounts.chunks)
