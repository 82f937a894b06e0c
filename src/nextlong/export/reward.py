"""Reward for document reconstruction, for TRL's and verl's GRPO.

The answer is the numbers of the chosen options in the order of the missing passages, as
in `<answer>4, 1</answer>`; the last such answer of a completion counts. The exact order
is worth 1, any other answer the share of the places with the right option, and an
answer with more numbers than places 0. Exports hold a copy of this file, so it imports
nothing but the standard library.
"""

import re
from typing import Any

_ANSWER = re.compile(r"<answer>([\d\s,]*)</answer>")


def score(completion: str, ground_truth: str) -> float:
    """Return the reward of a completion; `ground_truth` is such as "4, 1"."""
    answers = _ANSWER.findall(completion)
    if not answers:
        return 0.0
    given = re.findall(r"\d+", answers[-1])
    truth = re.findall(r"\d+", ground_truth)
    if len(given) > len(truth):
        return 0.0
    right = [one for one, other in zip(given, truth, strict=False) if one == other]
    return len(right) / len(truth)


def reward(
    completions: list[Any], reward_model: list[dict[str, Any]], **_: Any
) -> list[float]:
    """Return the rewards of completions, as TRL's `reward_funcs` do.

    A completion is a text, or the messages of a chat.
    """
    scores = []
    for completion, rule in zip(completions, reward_model, strict=True):
        if not isinstance(completion, str):
            completion = completion[-1]["content"]
        scores.append(score(completion, rule["ground_truth"]))
    return scores


def compute_score(
    data_source: str,  # noqa: ARG001 # verl names its arguments
    solution_str: str,
    ground_truth: str,
    extra_info: Any = None,  # noqa: ARG001
    **_: Any,
) -> float:
    """Return the reward of a completion, as verl's `custom_reward_function` does."""
    return score(solution_str, ground_truth)
