"""The CPU backend where parts of Linux are missing, as on macOS and Windows.

No test here runs on another system. A program removes from Python what the other system lacks, and then uses gsparse.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from gsparse.device import threads
from gsparse.distributed.ranks import shared_memory
from gsparse.distributed.ranks.communicator import Communicator
from tests.ranks.groups import run_memory, run_sockets
from tests.support import run_python

# For each system: `platform.machine()`, names that `os` lacks there, and modules that do not exist there.
SYSTEMS: dict[str, tuple[str, list[str], list[str]]] = {
    "darwin": ("arm64", ["sched_getaffinity", "sched_setaffinity", "posix_fallocate", "memfd_create"], []),
    "win32": (
        "AMD64",
        [
            "fork", "register_at_fork", "sched_getaffinity", "sched_setaffinity", "sched_yield", "posix_fallocate",
            "memfd_create", "geteuid", "getuid", "sysconf", "getloadavg", "O_NOFOLLOW", "mkfifo", "statvfs", "killpg",
        ],
        ["fcntl", "resource", "pwd", "grp", "termios", "pty"],
    ),
}  # fmt: skip

# Other libraries are imported, and numba compiles once, before anything is removed: they have code for these systems.
IMITATE = """
import os, platform, sys, tempfile, threading, warnings
from pathlib import Path
import numba, numpy as np, scipy.io, scipy.sparse as sp, scipy.sparse.linalg, threadpoolctl
numba.njit(lambda x: x.sum())(np.ones(3))
machine, names, modules = {about}
sys.platform, platform.machine = {system!r}, lambda: machine
for name in names: delattr(os, name)
for name in modules: sys.modules[name] = None
warnings.simplefilter("error", EncodingWarning)
"""

PROGRAM = """
import gsparse, gsparse.cli
from gsparse.kernels.cpu.pool import FUTEX
assert FUTEX is None
gsparse.set_num_threads(3)
side = 300
line = sp.diags_array([-1.0, 3.0, -1.0], offsets=[-1, 0, 1], shape=(side, side))
S = (sp.kron(line, sp.eye_array(side)) + sp.kron(sp.eye_array(side), line)).tocsr()
x, b = np.arange(side**2) % 7 + 1.0, np.ones(side**2)
for name in gsparse.FORMATS:
    A = gsparse.GpuSparseMatrix(S, device="cpu", format=name)
    for _ in range(3):
        np.testing.assert_allclose(A @ x, S @ x, rtol=1e-13)
A = gsparse.GpuSparseMatrix(S, device="cpu")
np.testing.assert_allclose(A @ np.stack([x, b], 1), S @ np.stack([x, b], 1), rtol=1e-13)
np.testing.assert_allclose(A.T @ x, S.T @ x, rtol=1e-13)
assert abs((A @ A - S @ S)).max() < 1e-12 and (A + A != 2 * S).nnz == 0
assert A[5:9].sum() == S[5:9].sum()
for solver in (gsparse.linalg.cg, gsparse.linalg.gmres):
    solution, info = solver(A, b, rtol=1e-8)
    assert info == 0 and np.linalg.norm(S @ solution - b) < 1e-7 * np.linalg.norm(b)
with tempfile.TemporaryDirectory() as folder:
    for ending in ("mtx", "npz"):
        path = Path(folder) / f"line.{ending}"
        scipy.io.mmwrite(path, line) if ending == "mtx" else sp.save_npz(path, line.tocsr())
        assert (gsparse.GpuSparseMatrix.from_file(path, device="cpu") != line.tocsr()).nnz == 0
    assert gsparse.cli.main(["info", str(path), "--device", "cpu"]) == 0
    assert gsparse.cli.main(["doctor"]) in (0, 1)
names = {thread.name for thread in threading.enumerate()}
assert "gsparse-cpu_0" in names and "gsparse-cpu-native" not in names, names
print("done")
"""


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.few(1)
def test_products_solvers_files_and_commands_run_without_what_only_linux_has(system: str) -> None:
    imitation = IMITATE.format(system=system, about=SYSTEMS[system])
    printed = run_python(imitation + PROGRAM, PYTHONWARNDEFAULTENCODING="1")
    assert printed.splitlines()[-1] == "done"


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.few(1)
def test_python_imports_the_modules_of_the_command_line_and_of_ranks(system: str) -> None:
    program = (
        "import socket, selectors, ssl, mmap, multiprocessing, subprocess, dask, distributed\n"
        + IMITATE.format(system=system, about=SYSTEMS[system])
        + "import importlib, pkgutil, gsparse\n"
        "skipped = ('gsparse.torch.', 'gsparse.jax.', 'gsparse.__main__')\n"
        "for module in pkgutil.walk_packages(gsparse.__path__, 'gsparse.'):\n"
        "    if not f'{module.name}.'.startswith(skipped): importlib.import_module(module.name)\n"
        "print('imported')\n"
    )
    assert run_python(program) == "imported"


def test_the_number_of_cpus_is_known_without_an_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert threads.available_cpus() == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert threads.available_cpus() == 1


def rank_and_sum(communicator: Communicator) -> tuple[str, float]:
    values = np.array([communicator.rank + 1.0])
    communicator.allreduce(values)
    return type(communicator).__name__, values[0]


def share_and_sum(control: Communicator) -> tuple[str, float]:
    return rank_and_sum(shared_memory.share_memory(control))


def test_ranks_of_windows_communicate_over_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory.sys, "platform", "win32")
    assert run_sockets(share_and_sum, 2) == [("SocketCommunicator", 3.0)] * 2


@pytest.mark.skipif(sys.platform == "win32", reason="ranks of Windows share no memory")
def test_ranks_of_macos_share_a_file_of_the_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    monkeypatch.setattr(shared_memory, "_folder", lambda: tmp_path)
    assert run_memory(rank_and_sum, 2) == [("MemoryCommunicator", 3.0)] * 2
    assert list(tmp_path.iterdir()) == []
