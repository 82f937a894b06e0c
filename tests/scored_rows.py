"""Rows of a replication's tables, from scores that are made up."""

from types import SimpleNamespace

from nextlong.replicate.data import Arm

NEAR, FAR = (0, 256), (256, 512)
LENGTHS = (512, 1024)


def stats(sequences, cosine=None):
    similarity = None if cosine is None else SimpleNamespace(p50=cosine)
    return SimpleNamespace(sequences=sequences, similarity=similarity, distinct_documents=1234, chars_per_token=4.5)


def row(name, *values, arm=None, needle=None):
    """A row whose seeds chose the value so often, and gained a hundredth of it from what stands before."""
    from nextlong.replicate.scores import ScoreRow, Scores

    seeds = []
    for value in values:
        mean = {"key_values": value, "gain-top": value / 100, "loss-top": 3 - value / 100}
        at = {"key_values": {length: value + place for place, length in enumerate(LENGTHS)}}
        gains = {"top": {NEAR: value / 50, FAR: value / 100}, "random-corpus": {NEAR: 0.0}}
        seeds.append(Scores(mean if needle is None else {**mean, "needle": needle}, at, gains))
    made = (
        None if arm is None else Arm("methods", arm, "run", "composed", stats(500 if arm == "nextlong" else 250, 0.5))
    )
    return ScoreRow(name, made, tuple(seeds), ())
