"""How clusters, matrices and sessions end: with nothing left behind, and without a word."""

from __future__ import annotations

import atexit
import gc
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.linalg.problems import laplacian

distributed = pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse[dask]'")

from gsparse.distributed import LocalGpuCluster, distribute  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # (dask's and tornado's own)

# Seconds: more than dask's own nanny gives a worker, which are 4.
SLOW = 5.0

SESSION = """
import numpy, scipy.sparse
from distributed import Client
from gsparse.distributed import LocalGpuCluster, distribute

if __name__ == "__main__":
    client = Client(LocalGpuCluster(2, device="cpu"))
    A = distribute(scipy.sparse.eye_array(100, format="csr"), client=client)
    print((A @ numpy.ones(100)).sum())
"""


def end_slowly(path: Path) -> None:
    """Have this process take a while to end, and say in a file that it did."""

    def end() -> None:
        time.sleep(SLOW)
        path.write_text("ended by itself")

    atexit.register(end)


def test_a_worker_that_is_slow_to_end_is_waited_for(tmp_path: Path) -> None:
    with LocalGpuCluster(1, device="cpu") as cluster, distributed.Client(cluster) as client:
        client.run(end_slowly, tmp_path / "end")
    assert (tmp_path / "end").read_text() == "ended by itself"


def test_a_closed_matrix_leaves_dask_nothing_to_keep() -> None:
    with LocalGpuCluster(1, device="cpu") as cluster, distributed.Client(cluster) as client:
        gc.disable()
        try:
            A = distribute(laplacian(4), client=client)
            assert any(key.startswith("gsparse-open") for key in client.futures)
            A.close()
            deadline = time.monotonic() + 5
            while client.futures and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not client.futures
        finally:
            gc.enable()


def test_a_session_that_is_left_with_a_matrix_open_ends_without_a_word(tmp_path: Path) -> None:
    script = tmp_path / "session.py"
    script.write_text(SESSION)
    left = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=True)
    assert left.stdout == "100.0\n"
    assert "lose already computed" not in left.stderr
