"""Tasks that other programs measure: `nextlong evaluate import` reads their results.

Each of these programs gives the published scores; docs/evaluate/import.md says how to
run them, and why lm-eval's tasks of the same names are not read instead.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from nextlong.evaluate.task import ImportedTask
from nextlong.evaluate.tasks.helmet.published import LENGTHS, QUESTIONS

_helmet = partial(
    ImportedTask,
    suite="helmet",
    samples=QUESTIONS,
    lengths=LENGTHS,
    program="HELMET's own scripts",
)
_cite = partial(_helmet, category="Cite", metric="str_em and citations")
_summ = partial(_helmet, category="Summ", metric="gpt-4-f1")
_longbench = partial(
    ImportedTask,
    suite="longbench-v2",
    metric="accuracy",
    samples=503,
    program="LongBench's pred.py",
    splits=(
        ("Easy", "difficulty", "easy"),
        ("Hard", "difficulty", "hard"),
        ("Short", "length", "short"),
        ("Medium", "length", "medium"),
        ("Long", "length", "long"),
    ),
    about="Documents over 120,000 tokens are cut in their middle; an answer without a "
    "letter is wrong.",
)
_babilong = partial(
    ImportedTask,
    suite="babilong",
    category="BABILong",
    metric="accuracy",
    samples=100,
    program="BABILong's own script",
)
TASKS: Final = (
    _cite("alce_asqa"),
    _cite("alce_qampari"),
    _summ("infbench_sum"),
    _summ("multi_lexsum"),
    _longbench("longbench_v2", category="LongBench v2"),
    _longbench("longbench_v2_cot", category="LongBench v2, cot"),
    _longbench("longbench_v2_no_context", category="LongBench v2, no context"),
    *(_babilong(f"babilong_qa{number}") for number in range(1, 6)),
    ImportedTask(
        name="graphwalks",
        suite="graphwalks",
        category="GraphWalks",
        metric="f1",
        samples=1150,
        program="lm-eval",
        splits=(("BFS", "kind", "bfs"), ("Parents", "kind", "parents")),
        about="128K: the published file of up to 128K tokens; 1M: that of 256K to 1M.",
    ),
)
