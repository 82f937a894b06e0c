"""Real text, a pretrained model, no training: what do negatives do to a prediction?

`measure.py` makes the same documents into sequences with each choice of negatives, and
scores the last meta-chunk of each; `summary.py` computes means and intervals over
documents; `python -m experiments.real_text` runs both and writes the page's part.
"""
