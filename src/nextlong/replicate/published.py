"""Published: the paper's own numbers, to stand beside ours (arXiv 2501.12766). Nothing here is measured by this package.

All are means over HELMET's five categories and RULER, of Llama-3-8B at 128K, lengths 8K to 128K, percent. What the paper shows
in figures alone has no numbers to copy: its words are quoted instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nextlong.replicate.recipe import Experiment

COLUMNS: Final = ("Avg.", "Recall", "RAG", "ICL", "Re-rank", "LongQA", "RULER")
PRETRAINED: Final = (13.37, 18.00, 12.68, 13.60, 7.74, 10.38, 17.80)
# By the recipe's own words for the methods and positions.
TABLES: Final[Mapping[Experiment, Mapping[str, tuple[float, ...]]]] = {
    "methods": {  # Table 1: comparison with other data synthesis methods
        "standard": (52.85, 62.33, 58.67, 71.24, 19.18, 28.99, 76.68),
        "knn": (50.97, 64.24, 56.00, 60.28, 18.77, 32.27, 74.30),
        "iclm": (50.37, 64.04, 54.48, 72.36, 14.04, 28.17, 69.14),
        "quest": (55.25, 69.13, 57.47, 72.08, 22.35, 33.82, 76.63),
        "nextlong": (62.58, 82.56, 60.91, 81.76, 31.47, 37.30, 81.50),
    },
    "position": {  # appendix B.1: placing the meta-chunk at different positions
        "head": (62.58, 82.56, 60.91, 81.76, 31.47, 37.30, 81.50),
        "tail": (60.01, 72.66, 63.67, 80.68, 30.73, 34.09, 78.26),
        "random": (58.95, 74.51, 63.05, 71.64, 32.78, 33.00, 78.73),
    },
}
SOURCES: Final[Mapping[Experiment, str]] = {
    "methods": "paper, Table 1",
    "position": "paper, appendix B.1",
    "granularity": (
        "paper, section 5.3: a figure only; 512, 1024, 2048, 8192 and 32768 were compared, and 2048 was best, "
        "1024 best at 128K alone"
    ),
    "negatives": (
        "paper, section 5.4: a figure only; top was best, lower similarity gave lower scores, and self-repeat "
        "degraded them further"
    ),
}
ATTENTION: Final = (
    "The paper shows in figures only (section 5.1, appendix B.4) that models trained with NExtLong attend "
    "more to the first third of the "
    "context and less to the last."
)
