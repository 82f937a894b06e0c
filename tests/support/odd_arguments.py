"""Values of many types, of which a function of the Python interface takes few or none."""

import numpy as np

import nextlong

ODD = {
    "None": None,
    "-1": -1,
    "1.5": 1.5,
    "nan": float("nan"),
    "2**70": 2**70,
    "True": True,
    "'x'": "x",
    "'2'": "2",
    "b'x'": b"x",
    "{}": {},
    "[]": [],
    "[None]": [None],
    "an array of fractions": np.array([0.5, 2.5]),
    "an object": object(),
    "a type": str,
}


def accepted(call, odd=ODD):
    """Return the labels of the odd values that a function takes; others must raise a NextlongError."""
    labels = set()
    for label, value in odd.items():
        try:
            call(value)
        except nextlong.NextlongError:
            continue
        labels.add(label)
    return labels
