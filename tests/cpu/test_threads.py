from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gsparse.kernels
from gsparse import threads
from gsparse.kernels import Launch, cpu

KERNELS = list(cpu.SPMV)
ONE, ZERO = np.float64(1), np.float64(0)
SOURCE_ROOT = Path(gsparse.kernels.__file__).parents[2]

# Large enough that several threads take parts.
LARGE_ROWS = 60_000

PRODUCT = """
import numpy as np
from gsparse import threads
from gsparse.formats import Csr
from gsparse.kernels import Launch, cpu
rows = 200_000
indptr = np.arange(rows + 1, dtype=np.int32) * 3
indices = (np.arange(3 * rows, dtype=np.int32) * 7) % rows
csr = Csr((rows, rows), indptr, indices, np.ones(3 * rows))
def product():
    y = np.empty(rows)
    cpu.csr_scalar(None, csr, np.ones(rows), y, np.float64(1), np.float64(0), False, Launch())
    return bool((y == 3).all())
"""


def run_python(program: str, root: Path = SOURCE_ROOT, **environment: str) -> str:
    """Run a program in a process of its own, with what `environment` adds, and give what it printed."""
    variables = {**os.environ, "PYTHONPATH": str(root), **environment}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def large(cases: Any) -> Any:
    lengths = np.random.default_rng(0).integers(0, 14, LARGE_ROWS)
    lengths[LARGE_ROWS // 3] = 50_000  # one row longer than a thread's share
    lengths[-5000:] = 0
    return cases.make_csr(list(lengths), 5000, "float64", "int32")


def run_kernel(kernel: str, matrix: Any, x: Any) -> Any:
    y = np.full(matrix.num_rows, np.nan)
    cpu.SPMV[kernel](None, matrix, x, y, ONE, ZERO, False, Launch(threads_per_row=8))
    return y


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_number_of_threads_changes_no_bit(kernel: str, large: Any, cases: Any) -> None:
    if kernel == "ellpack":
        large = cases.make_csr([5, 6, 7] * (LARGE_ROWS // 3), 5000, "float64", "int32")
    matrix, x = cases.store_as(kernel, large), np.random.default_rng(1).standard_normal(5000)
    threads.set_num_threads(1)
    expected = run_kernel(kernel, matrix, x)
    assert np.isfinite(expected).all()
    for num_threads in (2, 3, 16):
        threads.set_num_threads(num_threads)
        np.testing.assert_array_equal(run_kernel(kernel, matrix, x), expected)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 7, 64])
def test_every_row_has_exactly_one_owner(num_parts: int) -> None:
    from gsparse.kernels.cpu.rows import first_row

    for lengths in ([], [0, 0, 0], [9], [0, 0, 9], [9, 0, 0], [1, 0, 500, 0, 1, 1], [2] * 100):
        indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
        bounds = [first_row(part, num_parts, indptr) for part in range(num_parts + 1)]
        assert (bounds[0], bounds[-1]) == (0, len(lengths))
        assert bounds == sorted(bounds)


def test_many_threads_multiply_at_once(large: Any) -> None:
    threads.set_num_threads(3)
    xs = np.random.default_rng(1).standard_normal((8, 5000))
    expected = [run_kernel("csr_scalar", large, x) for x in xs]
    wrong: list[int] = []

    def multiply(caller: int) -> None:
        for _ in range(30):
            if not np.array_equal(run_kernel("csr_scalar", large, xs[caller]), expected[caller]):
                wrong.append(caller)

    callers = [threading.Thread(target=multiply, args=(caller,), daemon=True) for caller in range(len(xs))]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
        assert not caller.is_alive()
    assert wrong == []


def test_a_part_may_itself_hand_out_parts() -> None:
    threads.set_num_threads(3)
    seen = []
    cost = 10**9

    def inner(part: int, num_parts: int) -> None:
        seen.append(part)

    threads.run_parts(lambda part, num_parts: threads.run_parts(inner, cost), cost)
    num_parts = max(seen) + 1
    assert sorted(seen) == sorted([*range(num_parts)] * num_parts)


def test_an_error_in_a_part_reaches_the_caller_and_the_threads_live_on() -> None:
    threads.set_num_threads(2)

    def fail(part: int, num_parts: int) -> None:
        raise ArithmeticError(f"part {part}")

    for _ in range(20):
        with pytest.raises(ArithmeticError, match="part"):
            threads.run_parts(fail, 10**9)
    done: list[int] = []
    threads.run_parts(lambda part, num_parts: done.append(part), 10**9)
    assert sorted(done) == list(range(len(done)))


def test_arrays_are_let_go_of_after_a_product() -> None:
    threads.set_num_threads(2)
    array = np.zeros(10)
    before = sys.getrefcount(array)
    for _ in range(10):
        threads.run_parts(lambda part, num_parts, held: None, 10**9, array)
    # A thread of the pool may be about to drop its last reference.
    for _ in range(1000):
        if sys.getrefcount(array) == before:
            break
        threading.Event().wait(0.001)
    assert sys.getrefcount(array) == before


def test_threads_end_when_fewer_are_allowed() -> None:
    def count() -> int:
        return sum(thread.name == "gsparse-cpu" for thread in threading.enumerate())

    threads.set_num_threads(1)
    threads.set_num_threads(5)
    threads.run_parts(lambda part, num_parts: None, 10**9)
    assert count() >= 4
    threads.set_num_threads(2)
    for _ in range(2000):
        if count() == 1:
            break
        threading.Event().wait(0.001)
    assert count() == 1


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (0, ValueError, "at least 1, got 0"),
        (-3, ValueError, "at least 1, got -3"),
        (True, ValueError, "got True"),
        (2.0, TypeError, "must be an integer, got float"),
        ("2", TypeError, "must be an integer, got str"),
    ],
)
def test_a_bad_number_of_threads_is_an_error(bad: Any, error: type[Exception], message: str) -> None:
    before = threads.get_num_threads()
    with pytest.raises(error, match=message):
        threads.set_num_threads(bad)
    assert threads.get_num_threads() == before


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"GSPARSE_NUM_THREADS": "3", "NUMBA_NUM_THREADS": "5", "OMP_NUM_THREADS": "7"}, 3),
        ({"NUMBA_NUM_THREADS": "5", "OMP_NUM_THREADS": "7"}, 5),
        ({"OMP_NUM_THREADS": "7,2"}, 7),
        ({"OMP_NUM_THREADS": "nonsense"}, None),
        ({}, None),
    ],
)
def test_the_environment_sets_the_number_of_threads(
    variables: dict[str, str], expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GSPARSE_NUM_THREADS", "NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert threads._default_num_threads() == (expected or available)


def test_a_bad_variable_of_ours_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GSPARSE_NUM_THREADS", "many")
    with pytest.raises(ValueError, match="GSPARSE_NUM_THREADS must be an integer of at least 1, got 'many'"):
        threads._default_num_threads()


def test_threadpoolctl_limits_our_threads_and_restores_them() -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")
    threads.set_num_threads(3)
    assert {"user_api": "gsparse", "num_threads": 3}.items() <= next(
        info for info in threadpoolctl.threadpool_info() if info["internal_api"] == "gsparse"
    ).items()
    with threadpoolctl.threadpool_limits(1):
        assert threads.get_num_threads() == 1
    assert threads.get_num_threads() == 3
    with threadpoolctl.threadpool_limits({"gsparse": 2}):
        assert threads.get_num_threads() == 2
    assert threads.get_num_threads() == 3
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        assert threads.get_num_threads() == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_multiplies_after_its_parent_did() -> None:
    program = PRODUCT + (
        "import os, warnings\n"
        "warnings.simplefilter('ignore')\n"  # Python 3.12 warns of every fork beside threads
        "threads.set_num_threads(3)\n"
        "ok = product()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(0 if product() and product() else 1)\n"
        "_, status = os.waitpid(child, 0)\n"
        "print(ok, status, product())\n"
    )
    assert run_python(program) == "True 0 True"


def test_a_second_process_finds_the_compiled_code(tmp_path: Path) -> None:
    program = PRODUCT + (
        "from gsparse.kernels.cpu import spmv\n"
        "ok = product()\n"
        "print(ok, sum(spmv._csr_scalar.stats.cache_hits.values()))\n"
    )
    assert run_python(program, NUMBA_CACHE_DIR=str(tmp_path)) == "True 0"
    assert run_python(program, NUMBA_CACHE_DIR=str(tmp_path)) == "True 1"


def test_compiled_code_goes_to_the_users_cache_where_the_package_cannot_be_written(tmp_path: Path) -> None:
    package = tmp_path / "read_only" / "gsparse"
    shutil.copytree(SOURCE_ROOT / "gsparse", package, ignore=shutil.ignore_patterns("__pycache__"))
    # A file in the place of the folder stops root too, which a mode would not.
    (package / "kernels" / "cpu" / "__pycache__").touch()
    home = tmp_path / "home"
    home.mkdir()
    program = PRODUCT + (
        "from gsparse.kernels.cpu import spmv\n"
        "ok = product()\n"
        "print(ok, sum(spmv._csr_scalar.stats.cache_hits.values()))\n"
    )
    variables = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "NUMBA_CACHE_DIR": ""}
    assert run_python(program, package.parent, **variables) == "True 0"
    assert run_python(program, package.parent, **variables) == "True 1"
    assert any(home.rglob("*.nbi"))
