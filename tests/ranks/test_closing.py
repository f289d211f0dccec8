"""Clusters, matrices and sessions end without leaving anything behind, and without messages."""

from __future__ import annotations

import atexit
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

distributed = pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")

from gsparse.distributed import LocalGpuCluster  # noqa: E402

pytestmark = [pytest.mark.timed, pytest.mark.filterwarnings("ignore")]  # dask and tornado warn

# Seconds, more than the 4 that dask's own nanny waits for a worker.
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
    """Make this process end slowly, and write a file when it does."""

    def end() -> None:
        time.sleep(SLOW)
        path.write_text("ended by itself")

    atexit.register(end)


def test_closing_a_cluster_waits_for_a_worker_that_ends_slowly(tmp_path: Path) -> None:
    with LocalGpuCluster(1, device="cpu") as cluster, distributed.Client(cluster) as client:
        client.run(end_slowly, tmp_path / "end")
    assert (tmp_path / "end").read_text() == "ended by itself"


def test_a_session_that_ends_with_an_open_matrix_prints_no_warning(tmp_path: Path) -> None:
    script = tmp_path / "session.py"
    script.write_text(SESSION)
    left = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=True)
    assert left.stdout == "100.0\n"
    assert not re.search("warning|error|lose", left.stderr, re.IGNORECASE), left.stderr
