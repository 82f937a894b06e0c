import re
import shutil
from pathlib import Path

import pytest

from damage import breaches, change_array, chunk_name, files

ALL = 100_000  # a sample of everything


@pytest.fixture
def run(finished, tmp_path):
    """A copy to damage."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_a_vector_that_is_not_the_encoders(run):
    def alter(vectors):
        vectors[3] = -vectors[3]

    change_array(files(run, "embed", ".vectors.npy")[0], alter)
    found = breaches(run, "vectors", sample=ALL)
    assert f"the vector of {chunk_name(run, 3)} has the cosine -1.0000" in found["vectors encoded again"]
    assert "vectors have unit length" not in found


def test_a_vector_that_is_too_short(run):
    def alter(vectors):
        vectors[3] /= 2

    change_array(files(run, "embed", ".vectors.npy")[0], alter)
    (told,) = re.findall(
        re.escape(chunk_name(run, 3)) + r" has the length ([\d.]+)",
        breaches(run, "vectors", sample=0)["vectors have unit length"],
    )
    assert float(told) == pytest.approx(0.5, abs=0.001)
