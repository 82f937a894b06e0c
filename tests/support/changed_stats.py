"""Statistics of a run with some of their values changed, by path."""

from copy import deepcopy
from dataclasses import replace


def changed(stats, values):
    """Return `Stats` with other values, by paths such as `tokens.meta_share`."""
    for path, value in values.items():
        stats = _replaced(stats, path.split("."), value)
    return stats


def _replaced(group, keys, value):
    key, *below = keys
    if below:
        value = _replaced(getattr(group, key), below, value)
    return replace(group, **{key: value})


def changed_json(stats, values):
    """Return `Stats.as_json()` with other values, by paths; a missing group is made."""
    stats = deepcopy(stats)
    for path, value in values.items():
        *groups, key = path.split(".")
        group = stats
        for name in groups:
            if group.get(name) is None:
                group[name] = {}
            group = group[name]
        group[key] = value
    return stats
