"""Rows of damaged files equal those of the whole file, or raise an error with the file and a remedy; never a crash."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, example, given, settings

from gsparse.errors import FileFormatError
from tests.ranks.test_loaders import BANNER, assert_same, load_rows, rewrite
from tests.test_readers import CHILD, EXAMPLES, damaged, same, written
from tests.test_readers import Reader as Child

# The child process of tests/test_readers.py, changed to read a file in two halves, a line or two at a time. Of a matrix
# of very many rows, it reads nine.
ROWS_CHILD = CHILD.replace(
    "from gsparse.files import read_file",
    """
from gsparse.distributed.io import readers
from gsparse.distributed.io.loaders import RowLoader
readers._CHUNK = 30

def read_file(path):
    shape = readers.open_file(path).shape
    sources, half = RowLoader([path], shape), shape[0] // 2
    if shape[0] > 1 << 18:
        return sources.rows(half, half + 9)
    return sp.vstack([sources.rows(0, half), sources.rows(half, shape[0])], format="csr")
""",
)
REMEDY = "Fetch it again, or write it with"


class RowsChild(Child):
    """A process that reads files with RowLoader, as ranks do."""

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", ROWS_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Child, Child]]:
    """Return a process that reads files by their rows, and one that reads them as a whole."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the memory limit needs Linux")
    folder = tmp_path_factory.mktemp("damaged")
    readers_by_mode = RowsChild(folder), Child(folder)
    yield readers_by_mode
    for child in readers_by_mode:
        child.close()


def test_a_few_rows_are_read_of_a_matrix_that_exceeds_memory(tmp_path: Path) -> None:
    path, n = tmp_path / "huge.mtx", 10**12
    path.write_text(f"{BANNER}{n} 3 2\n{n} 3 5\n1 1 4\n")
    assert_same(load_rows(path, n - 2, n, (n, 3)), sp.csr_array([[0, 0, 0], [0, 0, 5.0]]))
    with pytest.raises(FileFormatError, match=f"leave empty rows out.*{REMEDY}"):
        load_rows(path, 0, n, (n, 3))


def test_values_of_the_other_byte_order_are_read(tmp_path: Path) -> None:
    path, A = tmp_path / "big.npz", sp.eye_array(3, format="csr")
    sp.save_npz(path, A)
    rewrite(path, data=A.data.astype(">f8"), indices=A.indices.astype(">i4"), indptr=A.indptr.astype(">i4"))
    assert_same(load_rows(path, 1, 3, (3, 3)), A[1:])


@pytest.mark.parametrize("ending", [".npz", ".mtx", ".mtx.gz"])
@pytest.mark.filterwarnings("ignore")  # SciPy and NumPy warn of the damage
@pytest.mark.whole
def test_rows_of_a_damaged_file_are_refused_or_equal_the_whole_files(
    children: tuple[Child, Child], ending: str
) -> None:
    rows, whole = children
    tally = dict.fromkeys(["matrix", "refused", "both"], 0)

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(damaged(ending))
    @example(written(ending, sp.eye_array(3, 4)))
    def check(content: bytes) -> None:
        (outcome, answer), (expected, exact) = rows(ending, content), whole(ending, content)
        assert outcome in tally, f"{answer}: {content!r}"
        tally[outcome] += 1
        if outcome == "refused":
            is_unknown = answer.startswith(f"A{ending} cannot be read: ")  # the header of a kind that is not read
            assert is_unknown or (answer.startswith(f"A{ending} is truncated or malformed: ") and REMEDY in answer)
            # SciPy rounds floating-point pointers, and gsparse refuses them.
            assert expected == "refused" or "indptr must be integers" in answer, f"{answer}: {content!r}"
        elif expected == "matrix" and exact is not None:
            tally["both"] += 1
            same(*(sp.csr_array(tuple(vectors), shape=shape) for shape, *vectors in (answer, exact)))

    check()
    assert tally["refused"] > EXAMPLES // 10 and tally["both"]
