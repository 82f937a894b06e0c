"""The reward of reconstruction, in all three forms, and alone as a file beside an export."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.export import reward


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<answer>4, 1, 7</answer>", 1.0),
        ("I think so. <answer> 4,1 ,7 </answer> Done.", 1.0),
        ("<answer>4, 7, 1</answer>", 1 / 3),
        ("<answer>4, 1</answer>", 2 / 3),
        ("<answer>4</answer>", 1 / 3),
        ("<answer>1, 4, 7</answer>", 1 / 3),
        ("<answer>1, 7, 4</answer>", 0.0),
        ("<answer></answer>", 0.0),
        ("<answer>4, 1, 7, 2</answer>", 0.0),
        ("<answer>7, 1, 4</answer> no: <answer>4, 1, 7</answer>", 1.0),
        ("<answer>4, 1, 7</answer> no: <answer>2, 2, 2</answer>", 0.0),
        ("4, 1, 7", 0.0),
        ("<answer>4, 1, 7", 0.0),
        ("<answer>four</answer>", 0.0),
        ("", 0.0),
    ],
)
def test_the_exact_order_is_worth_one_and_others_their_share(completion, expected):
    truth = "4, 1, 7"
    assert reward.score(completion, truth) == pytest.approx(expected)
    assert reward.compute_score("any", completion, truth, {"x": 1}) == (
        reward.score(completion, truth)
    )
    rule = {"style": "rule", "ground_truth": truth}
    chat = [{"role": "assistant", "content": completion}]
    rewards = reward.reward([completion, chat], [rule, rule], prompts=["a", "b"])
    assert rewards == [reward.score(completion, truth)] * 2


_NUMBERS = st.lists(st.integers(1, 12), min_size=1, max_size=4)


@given(_NUMBERS, _NUMBERS)
def test_it_is_the_share_of_equal_places(given_numbers, truth):
    text = f"<answer>{', '.join(map(str, given_numbers))}</answer>"
    found = reward.score(text, ", ".join(map(str, truth)))
    right = 0
    for place in range(min(len(given_numbers), len(truth))):
        right += given_numbers[place] == truth[place]
    expected = 0 if len(given_numbers) > len(truth) else right / len(truth)
    assert found == pytest.approx(expected)
    assert (found == 1) == (given_numbers == truth)


def test_the_file_runs_without_the_package(tmp_path):
    copy = tmp_path / "reward.py"
    copy.write_bytes(Path(reward.__file__).read_bytes())
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import reward; "
        "assert 'nextlong' not in sys.modules; "
        "print(reward.compute_score('d', '<answer>2, 1</answer>', '2, 1'))"
    )
    told = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == "1.0"
