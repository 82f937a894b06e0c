"""Statistics of an invented run, as `Stats.as_json()` returns them."""

from nextlong.schemas import Layout
from tests.support.changed_stats import changed_json


def plain(layout, **values):
    """Statistics of an invented run with other values, by paths with `__` for the dot."""
    is_extended = layout == Layout.EXTENDED
    stats = {
        "setting": {
            "layout": layout,
            "negatives": "top",
            "hard_share": None,
            "position": "head",
            "min_meta_chunks": 2 if is_extended else None,
            "encoder": "lsa",
            "max_chars": 2048,
            "target_tokens": 32768,
        },
        "sequences": 4,
        "yields": {"asked": 4, "documents": 200, "drafts": 10},
        "tokens": {
            "by_source": {"a": 1, "b": 1},
            "meta_share": 0.05 if is_extended else None,
            "chars_per_token": 4.0,
            "cut_off": None if is_extended else {"tokens": 1},
        },
        "similarity": {
            "cosine": {"mean": 0.5, "count": 60},
            "random": {"mean": 0.125, "p90": 0.25},
        },
        "distance_tokens": {"p50": 1234.0},
        "negatives": None,
        "meta_chunks": None,
        "chunks": {"tokens": {"max": 604}},
        "documents": {"in_parts": None},
        "corpus": {"keywords": None, "unshared_keywords": None, "left_out": []},
        "near_duplicates": {"chunks": 5, "documents": None},
        "warnings": [],
        "control": "",
    }
    if is_extended:
        stats["negatives"] = {
            "from_own_document": 0,
            "near_identical": {"share": 0.0},
            "tokens_by_source": {"a": 1},
        }
        stats["meta_chunks"] = {"after_last": {"share": 0.2}}
    return with_values(stats, values)


def with_values(stats, values):
    return changed_json(
        stats, {path.replace("__", "."): value for path, value in values.items()}
    )
