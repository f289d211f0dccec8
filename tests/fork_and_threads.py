"""Two uses of one matrix by several threads, repeated in processes of their own: nothing may hang or crash.

    python -m tests.fork_and_threads fork --rounds 50
    python -m tests.fork_and_threads edits --rounds 50

`fork` forks a process while two of its threads write to, copy, make, release, or multiply a matrix: in turn, one of
these in each round. A round forks `--forks` children. Each of them multiplies, writes and ends.

`edits` changes a matrix while other threads multiply it: in turn, by methods of the matrix, through its host arrays,
and by SciPy's own functions that compress these arrays in place. A thread may get a ValueError or an IndexError, as
SciPy raises them for arrays that do not fit together. A round takes `--seconds`.

The last line says what was done. The exit code is 1 if a round crashed, gave a wrong result or hung: a round of `fork`
after four minutes, one of its children after one minute, and a round of `edits` after two minutes. The last two print
the stacks of their threads.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse import GpuSparseMatrix
from tests.linalg.problems import laplacian

# Seconds after which a child, and a round of `fork`, count as hanging. A round of `edits` has half the time.
CHILD_HANG, HANG = 60, 240

# What two threads do while the main thread forks.
FORK_KINDS = ("write", "copy", "make", "release", "multiply")

# How a thread changes a matrix that others multiply.
EDIT_KINDS = ("methods", "loans", "compress")


class Failed(Exception):
    """A result was wrong."""


# ---------------------------------------------------------------------------------------------------------------- fork


def _repeat(call: Callable[[], object], stop: threading.Event) -> threading.Thread:
    """Start a thread that calls a function until `stop` is set."""

    def run() -> None:
        while not stop.is_set():
            call()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _use(B: Any, S: Any, x: Any) -> None:
    """Multiply, write, and check the products, in a forked child."""
    B.data[0] = 4.0
    S = S.copy()
    S.data[0] = 4.0
    for product, expected in ((B @ x, S @ x), (B.T @ x, S.T @ x), (B.copy() @ x, S @ x), ((B + B) @ x, 2 * (S @ x))):
        np.testing.assert_allclose(product, expected, rtol=1e-12, atol=1e-12)


def _in_child(work: Callable[[], None]) -> int:
    """Run a function in a forked child, and return the child's status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    status = 1
    try:
        faulthandler.dump_traceback_later(CHILD_HANG, exit=True)
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def fork(kind: str, forks: int, seed: int) -> str:
    """Fork children while two threads use a matrix."""
    S = laplacian(60)
    x = np.random.default_rng(seed).standard_normal(S.shape[1])
    S.data[0] = 4.0
    B = GpuSparseMatrix(S, device="cpu")
    _use(B, S, x)  # compiles what the child needs

    def write() -> None:
        B.data[0] = 4.0
        B @ x

    def release() -> None:
        B.release()
        B @ x

    uses: dict[str, Callable[[], object]] = {
        "write": write,
        "copy": lambda: B.copy() @ x,
        "make": lambda: GpuSparseMatrix(S, device="cpu") @ x,
        "release": release,
        "multiply": lambda: (B @ x, B.T @ x),
    }
    stop, unexpected = threading.Event(), list[str]()
    threading.excepthook = lambda args: unexpected.append(repr(args.exc_value))
    threads = [_repeat(uses[kind], stop) for _ in range(2)]
    for number in range(forks):
        state = _in_child(lambda: _use(B, S, x))
        if state:
            raise Failed(f"{kind}: child {number} hung or failed, with the exit state {state}")
    stop.set()
    for thread in threads:
        thread.join()
    if unexpected:
        raise Failed(f"{kind}: {unexpected[0]}")
    return f"{kind}: {forks} children"


# --------------------------------------------------------------------------------------------------------------- edits


def _edit_by_methods(B: Any, rng: np.random.Generator) -> None:
    i, j = rng.integers(B.shape[0], size=2)
    B[i, j] = 1.5
    B.eliminate_zeros()
    B.sum_duplicates()
    B[i, j] = 0


def _edit_through_loans(B: Any, rng: np.random.Generator) -> None:
    """Write columns that lie outside of the matrix, and row pointers that lie outside of the arrays, for a while."""
    for name, value in (("indices", 2**28), ("indptr", 2**28)):
        array = getattr(B, name)
        kept = array.copy()
        array[rng.integers(array.size) :] = value
        array[:] = kept


def _compress_in_place(B: Any, rng: np.random.Generator) -> None:
    """Let SciPy remove zeros and add repeated entries up in the arrays, which shrinks what the row pointers span."""
    S = sp.csr_array((B.data, B.indices, B.indptr), shape=B.shape, copy=False)
    kept = S.copy()
    S.data[rng.random(S.data.size) < 0.5] = 0
    S.eliminate_zeros()
    B.indptr[:], B.indices[:], B.data[:] = kept.indptr, kept.indices, kept.data


EDITS: dict[str, Callable[[Any, np.random.Generator], None]] = {
    "methods": _edit_by_methods,
    "loans": _edit_through_loans,
    "compress": _compress_in_place,
}


def edits(kind: str, seconds: float, seed: int) -> str:
    """Change a matrix for a while, as three other threads multiply it."""
    S = sp.random_array((400, 400), density=0.05, format="csr", rng=np.random.default_rng(seed))
    B, v, rng = GpuSparseMatrix(S, device="cpu"), np.ones(400), np.random.default_rng(seed)
    errors: Counter[str] = Counter()
    completed: Counter[Callable[[], object]] = Counter()

    def caught(call: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            try:
                call()
                completed[call] += 1
            except (ValueError, IndexError) as error:  # the errors of SciPy
                errors[type(error).__name__] += 1

        return run

    unexpected: list[str] = []
    threading.excepthook = lambda args: unexpected.append(repr(args.exc_value))
    stop = threading.Event()
    uses = (lambda: B @ v, lambda: B.T @ v, lambda: (B.sum(), B.copy() @ v, B.toarray()))
    threads = [_repeat(caught(use), stop) for use in uses]
    edit, end, count = caught(lambda: EDITS[kind](B, rng)), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        edit()
        count += 1
    stop.set()
    for thread in threads:
        thread.join()
    if unexpected:
        raise Failed(f"{kind}: {unexpected[0]}")
    if not all(completed[use] for use in uses):
        raise Failed(f"{kind}: a use of the matrix never succeeded, {dict(errors)}")
    np.testing.assert_allclose(B @ v, sp.csr_array(B) @ v)
    return f"{kind}: {count} edits, refused or failed calls {dict(errors)}"


# ---------------------------------------------------------------------------------------------------------- the rounds


def _run_round(scenario: str, number: int, args: argparse.Namespace) -> bool:
    """Run one round in a process of its own, and return whether it succeeded."""
    command = [sys.executable, "-m", "tests.fork_and_threads", scenario, "--round", str(number)]
    command += ["--forks", str(args.forks), "--seconds", str(args.seconds)]
    # Where coverage is measured, the compiler takes so long that forks, which wait for it, seem to hang.
    environment = {name: value for name, value in os.environ.items() if name != "COVERAGE_PROCESS_START"}
    with tempfile.TemporaryFile("w+") as output:  # not a pipe: a child that hangs would keep it open
        try:
            code = subprocess.call(command, stdout=output, stderr=subprocess.STDOUT, timeout=HANG, env=environment)
        except subprocess.TimeoutExpired:
            code = -1
        output.seek(0)
        print(f"{number}: {output.read().strip()}" + (f"\nfailed with exit code {code}" if code else ""), flush=True)
    return code == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=("fork", "edits"))
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--forks", type=int, default=20, help="children of a round of `fork`")
    parser.add_argument("--seconds", type=float, default=3.0, help="time of a round of `edits`")
    parser.add_argument("--round", type=int, help="run this round alone, in this process")
    args = parser.parse_args()
    if args.round is None:
        failed = sum(not _run_round(args.scenario, number, args) for number in range(args.rounds))
        print(f"{args.scenario}: {args.rounds} rounds, {failed} failed")
        return int(failed > 0)
    warnings.simplefilter("ignore")  # since Python 3.12, a fork of a process with threads warns
    faulthandler.enable()
    if args.scenario == "fork":  # without a watchdog of faulthandler, whose lock a child could not acquire
        print(fork(FORK_KINDS[args.round % len(FORK_KINDS)], args.forks, args.round))
    else:
        faulthandler.dump_traceback_later(HANG // 2, exit=True)
        print(edits(EDIT_KINDS[args.round % len(EDIT_KINDS)], args.seconds, args.round))
    return 0


if __name__ == "__main__":
    sys.exit(main())
