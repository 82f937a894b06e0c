"""Schedule: the learning rate of each step, a function of the step alone, so nothing of it is saved."""

from __future__ import annotations

import math

from nextlong.train.recipe import Training


def learning_rate(step: int, training: Training) -> float:
    """Return the learning rate of step 1, 2, …: up in a straight line, then down to `min_lr_ratio` of the highest at the last."""
    if step <= training.warmup_steps:
        return training.lr * step / training.warmup_steps
    done = (step - training.warmup_steps) / (training.steps - training.warmup_steps)
    left = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[training.schedule]
    return training.lr * (training.min_lr_ratio + (1 - training.min_lr_ratio) * left)
