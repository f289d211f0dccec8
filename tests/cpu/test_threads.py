"""Threads of a CPU: their number, errors and interruptions, forks, the end of the process, and code on disk."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gsparse
from gsparse._interrupt import uninterrupted
from gsparse.device import threads
from gsparse.kernels.cpu.compiling import compiled
from tests.support import SOURCE_ROOT, from_lengths, run_python

# Large enough that 16 threads share the work.
LARGE_ROWS = 120_000

PRODUCT = """
import numpy as np, scipy.sparse as sp
import gsparse
from gsparse._interrupt import uninterrupted
from gsparse.device import threads
from gsparse.kernels.cpu.compiling import HandOut
HandOut.num_first = 0
rows = 200_000
indptr = np.arange(rows + 1, dtype=np.int32) * 3
indices = (np.arange(3 * rows, dtype=np.int32) * 7) % rows
S = sp.csr_array((np.ones(3 * rows), indices, indptr), shape=(rows, rows))
A = gsparse.GpuSparseMatrix(S, device="cpu", format="csr_scalar")
def product():
    return bool((A @ np.ones(rows) == 3).all())
"""


@pytest.fixture
def large() -> Any:
    lengths = np.random.default_rng(0).integers(0, 14, LARGE_ROWS)
    lengths[LARGE_ROWS // 3] = 50_000  # one row longer than a thread's share
    lengths[-5000:] = 0
    matrix = from_lengths(lengths, 5000, np.random.default_rng(1))
    return gsparse.GpuSparseMatrix(matrix, device="cpu", format="csr_scalar")


def test_the_number_of_threads_changes_no_bit(large: Any) -> None:
    x = np.random.default_rng(1).standard_normal(5000)
    threads.set_num_threads(1)
    expected = large @ x
    assert np.isfinite(expected).all()
    for num_threads in (2, 3, 16):
        threads.set_num_threads(num_threads)
        np.testing.assert_array_equal(large @ x, expected)


def test_many_threads_multiply_while_the_number_of_threads_changes(large: Any) -> None:
    xs = np.random.default_rng(1).standard_normal((12, 5000))
    expected = [large @ x for x in xs]
    wrong: list[int] = []

    def multiply(caller: int) -> None:
        for _ in range(30):
            if not np.array_equal(large @ xs[caller], expected[caller]):
                wrong.append(caller)

    callers = [threading.Thread(target=multiply, args=(caller,), daemon=True) for caller in range(len(xs))]
    for caller in callers:
        caller.start()
    for round_ in range(100):
        threads.set_num_threads(2 + round_ * 7 % 15)
        large @ xs[0]
    for caller in callers:
        caller.join(timeout=60)
        assert not caller.is_alive()
    assert wrong == []


def fail(part: int, num_parts: int, size: int, out: Any) -> None:
    if size > 10:
        raise MemoryError


@partial(compiled, allocates=True)
def allocate(part: int, num_parts: int, size: int, out: Any) -> None:
    out[part] = np.empty(size)[:1].size


@pytest.mark.parametrize("function", [fail, allocate], ids=["Python", "compiled"])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_an_error_in_a_part_reaches_the_caller_and_the_threads_continue(num_threads: int, function: Any) -> None:
    threads.set_num_threads(num_threads)
    for _ in range(20):
        with pytest.raises(MemoryError):
            threads.run_parts(function, 10**9, 2**56, np.zeros(1000))
        threads.run_parts(function, 10**9, 10, np.zeros(1000))


@pytest.mark.timed
def test_idle_threads_keep_no_core_busy(large: Any) -> None:
    threads.set_num_threads(16)
    for _ in range(10):
        large @ np.ones(5000)
    threading.Event().wait(0.05)
    before = time.process_time()
    threading.Event().wait(0.5)
    assert time.process_time() - before < 0.1


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (0, ValueError, "at least 1, got 0"),
        (-3, ValueError, "at least 1, got -3"),
        (True, TypeError, "must be an integer, got bool"),
        (2.0, TypeError, "must be an integer, got float"),
        ("2", TypeError, "must be an integer, got str"),
    ],
)
def test_an_invalid_number_of_threads_is_an_error(bad: Any, error: type[Exception], message: str) -> None:
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
    monkeypatch.setenv("GSPARSE_NUM_THREADS", "many")
    with pytest.raises(ValueError, match="GSPARSE_NUM_THREADS must be an integer of at least 1, got 'many'"):
        threads._default_num_threads()


def test_the_environment_may_be_set_after_the_import() -> None:
    program = "import os, gsparse; os.environ['GSPARSE_NUM_THREADS'] = '3'; print(gsparse.get_num_threads())"
    assert run_python(program) == "3"


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
@pytest.mark.whole
def test_a_child_forked_during_products_of_other_threads_multiplies() -> None:
    program = PRODUCT + (
        "import os, threading, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "threads.set_num_threads(3)\n"
        "product()\n"
        "stop = threading.Event()\n"
        "def multiply():\n"
        "    while not stop.is_set():\n"
        "        product()\n"
        "callers = [threading.Thread(target=multiply) for _ in range(3)]\n"
        "for caller in callers: caller.start()\n"
        "states = []\n"
        "for _ in range(20):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        os._exit(0 if product() and product() else 1)\n"
        "    states.append(os.waitpid(child, 0)[1])\n"
        "stop.set()\n"
        "for caller in callers: caller.join()\n"
        "print(set(states), product())\n"
    )
    assert run_python(program) == "{0} True"


@pytest.mark.parametrize("num_threads", [2, 16])
@pytest.mark.parametrize(
    "last",
    [
        "print(product())",  # the helper threads are still awake when the process ends
        "print(product()); import time; time.sleep(0.1)",
        "import atexit; atexit.register(lambda: print(product()))",
        "import atexit; atexit.register(lambda: print(product())); product()",
        "import threading; threading.Thread(target=lambda: print(product())).start()",
    ],
)
@pytest.mark.whole
def test_the_process_ends_cleanly(last: str, num_threads: int) -> None:
    assert run_python(f"{PRODUCT}threads.set_num_threads({num_threads})\n{last}\n") == "True"


# A round also ends if the exception is lost: an exception that is raised while Python frees an object is only printed.
INTERRUPTION = """
import itertools, os, random, signal, threading, warnings
warnings.simplefilter("ignore")
signals = []
def interrupt(*_):
    signals.append(True)
    raise KeyboardInterrupt
def run_interrupted(call, delay):
    before = len(signals)
    try:
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
        while len(signals) == before: call()
    except KeyboardInterrupt:
        pass
signal.signal(signal.SIGINT, interrupt)
"""


@pytest.mark.parametrize(
    "call",
    ["threads.set_num_threads(2 + next(count) % 2); A @ x", "A.data[0] = next(count); A @ x"],
    ids=["other helpers", "other values"],
)
@pytest.mark.whole
def test_after_interruptions_no_lock_is_locked_and_products_are_right(call: str) -> None:
    program = (
        f"{PRODUCT.replace('200_000', '60_000')}{INTERRUPTION}"
        "count, x = itertools.count(), np.ones(rows)\n"
        f"def change_and_multiply(): {call}\n"
        # What llvmlite compiles must not be interrupted: it calls Python in ways that cannot pass an exception on.
        "for _ in range(5): change_and_multiply()\n"
        "for _ in range(500):\n"
        "    run_interrupted(change_and_multiply, random.uniform(0.001, 0.003))\n"
        "    right = []\n"
        "    other = threading.Thread(target=lambda: right.append(bool(((A @ x)[1:] == 3).all())), daemon=True)\n"
        "    other.start()\n"
        "    other.join(20)\n"
        "    if right != [True]: break\n"
        "print(right, flush=True)\n"
        "os._exit(0)\n"
    )
    assert run_python(program) == "[True]"


# Ctrl-C while numba is imported, and within a call that numba compiles or finds on the disk. Each line that it prints
# says whether the interruption came, and whether what it came into was finished first.
INTERRUPTED_NUMBA = """
import os, signal, sys, numpy as np
from gsparse.device.cpu import cpu_device
from gsparse.kernels.backends import kernels_of
def interrupt(*_):
    raise KeyboardInterrupt
def interrupted(call):
    try:
        call()
    except KeyboardInterrupt:
        return True
    return False
def send(*_):
    os.kill(os.getpid(), signal.SIGINT)
class AtImport:
    def find_spec(self, name, path=None, target=None):
        if name == "numba.core.typing": send()
signal.signal(signal.SIGINT, interrupt)
sys.meta_path.insert(0, AtImport())
print(interrupted(lambda: kernels_of(cpu_device())), "gsparse.kernels.cpu.vectors" in sys.modules)
from numba.core import event
from gsparse.kernels.cpu.spmm import _copy_rows
column = np.ones((1, 1))
class AtCompilation(event.Listener):
    on_start = on_end = send
event.register("numba:compiler_lock", AtCompilation())
call, stats = lambda: _copy_rows(0, 1, column, column), _copy_rows.stats
print(interrupted(call), len(_copy_rows.overloads), sum(stats.cache_hits.values()))
print(interrupted(call), signal.getsignal(signal.SIGINT) is interrupt)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX are sent")
def test_ctrl_c_waits_until_numba_is_imported_and_has_compiled_or_loaded_a_kernel(tmp_path: Path) -> None:
    for loaded in (0, 1):
        output = run_python(INTERRUPTED_NUMBA, NUMBA_CACHE_DIR=str(tmp_path))
        assert output.splitlines() == ["True True", f"True 1 {loaded}", "False True"]


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX are sent")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGALRM])
def test_a_delayed_signal_calls_the_handler_of_the_program_once(number: signal.Signals) -> None:
    calls = []

    def handler(*arguments: Any) -> None:
        calls.append(arguments)
        raise KeyboardInterrupt

    def block_of_another_thread() -> None:
        with uninterrupted():
            seen.append(signal.getsignal(number))

    seen: list[Any] = []
    other = threading.Thread(target=block_of_another_thread)
    before = signal.signal(number, handler)
    try:
        other.start()
        other.join()
        with pytest.raises(KeyboardInterrupt), uninterrupted():
            for _ in range(2):
                with uninterrupted():
                    os.kill(os.getpid(), number)
            assert not calls
        assert [arguments[0] for arguments in calls] == [number]
        assert [signal.getsignal(number), *seen] == [handler, handler]
    finally:
        signal.signal(number, before)


# How often code was found on the disk: what one thread calls, and what hands it to several threads.
COUNT_CACHE_HITS = (
    f"{PRODUCT}from gsparse.kernels.cpu.spmv import _csr_scalar\n"
    "codes = [_csr_scalar, _csr_scalar.hand_out.in_parts] if hasattr(_csr_scalar, 'hand_out') else [_csr_scalar] * 2\n"
    "for number, code in enumerate(codes, 1):\n"
    "    threads.set_num_threads(number)\n"
    "    print(product(), sum(code.stats.cache_hits.values()))\n"
)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Copy the package to a new folder, as an installation would, and return its path there."""
    package = tmp_path / "installed" / "gsparse"
    shutil.copytree(SOURCE_ROOT / "gsparse", package, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def at_home(home: Path) -> dict[str, str]:
    home.mkdir()
    return {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "NUMBA_CACHE_DIR": "", "GSPARSE_CACHE_DIR": ""}


@pytest.mark.whole
def test_compiled_code_is_stored_in_the_users_cache_and_not_beside_the_package(tmp_path: Path, installed: Path) -> None:
    variables = at_home(tmp_path / "home")
    assert run_python(COUNT_CACHE_HITS, installed.parent, **variables) == "True 0\nTrue 0"
    assert run_python(COUNT_CACHE_HITS, installed.parent, **variables) == "True 1\nTrue 1"
    assert any((tmp_path / "home").rglob("*.nbi")) and not any(installed.rglob("*.nbi"))
    # numba itself checks only the file of a function for changes, and not the files of the functions that it calls.
    with (installed / "kernels" / "cpu" / "rows.py").open("a") as changed:
        changed.write("# changed\n")
    assert run_python(COUNT_CACHE_HITS, installed.parent, **variables) == "True 0\nTrue 0"


@pytest.mark.whole
def test_compiled_code_is_stored_beside_the_source_if_the_users_cache_cannot_be_written(
    tmp_path: Path, installed: Path
) -> None:
    variables = at_home(tmp_path / "home")
    # A file in place of the folder prevents writing even for root, which permissions would not.
    (tmp_path / "home" / "cache").touch()
    assert run_python(COUNT_CACHE_HITS, installed.parent, **variables) == "True 0\nTrue 0"
    assert run_python(COUNT_CACHE_HITS, installed.parent, **variables) == "True 1\nTrue 1"
    assert any(installed.rglob("*.nbi"))


def test_the_cache_folder_of_other_libraries_is_not_changed() -> None:
    folder = "numba.config.CACHE_DIR"
    program = f"import numba; before = {folder}; import gsparse.kernels.cpu; print({folder} == before)"
    assert run_python(program) == "True"
