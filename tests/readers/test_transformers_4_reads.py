"""transformers 4 loads a trained model with the RoPE that it was trained with."""

import os
from pathlib import Path

import numpy as np
import pytest

pytestmark = [
    pytest.mark.readers,
    pytest.mark.filterwarnings("ignore"),  # not ours to mend
]

TRAINED = Path(os.environ.get("READER_ROPES", "READER_ROPES is not set"))
# What version 4 does not load, of whichever source: a Phi-3 that names a factor, and a
# YaRN that does not.
REFUSED = (
    "longrope-with-a-factor",
    "longrope-with-an-attention-factor",
    "yarn-without-a-factor",
)
FOLDERS = sorted(TRAINED.glob("*/final")) or [TRAINED / "none" / "final"]


@pytest.mark.parametrize("final", FOLDERS, ids=lambda path: path.parent.name)
def test_the_logits_are_those_of_transformers_5(final):
    import torch
    import transformers

    assert transformers.__version__.startswith("4.")
    if final.parent.name in REFUSED:
        with pytest.raises((ValueError, TypeError)):
            transformers.AutoModelForCausalLM.from_pretrained(final)
        return
    model = transformers.AutoModelForCausalLM.from_pretrained(final)
    rows = torch.randint(3, 97, (2, 256), generator=torch.Generator().manual_seed(0))
    for tokens in (24, 256):
        expected = np.load(final.parent / f"logits-{tokens}.npy")
        with torch.no_grad():
            found = model(input_ids=rows[:1, :tokens]).logits.numpy()
        np.testing.assert_allclose(found, expected, atol=1e-3)
