"""Threads and forked children use one matrix: nothing hangs, and kernels read no memory that others write to."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse.products.prepared
from gsparse import GpuSparseMatrix
from gsparse.device import locks
from gsparse.device.base import Device
from gsparse.device.locks import make_lock
from tests.linalg.problems import laplacian

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


def run_rounds(*args: str) -> str:
    command = [sys.executable, "-m", "tests.fork_and_threads", *args]
    done = subprocess.run(
        command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_fork
@pytest.mark.timed
@pytest.mark.whole
def test_children_forked_while_threads_use_a_matrix_do_not_hang() -> None:
    assert "5 rounds, 0 failed" in run_rounds("fork", "--rounds", "5", "--forks", "5")


@pytest.mark.timed
@pytest.mark.whole
def test_a_matrix_that_one_thread_edits_and_others_multiply_does_not_crash() -> None:
    assert "3 rounds, 0 failed" in run_rounds("edits", "--rounds", "3", "--seconds", "2")


def in_fork(work: Callable[[], bool]) -> int:
    """Return the exit status of a forked child that runs `work`, which SIGALRM ends if it hangs."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        import signal

        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        os._exit(0 if work() else 1)
    finally:
        os._exit(2)


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_can_acquire_what_another_thread_of_its_parent_holds() -> None:
    lock, own, held, release = make_lock(), make_lock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        with own:
            assert in_fork(lambda: lock.acquire(timeout=30) and own._is_owned()) == 0
    finally:
        release.set()
        thread.join()


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_computes_a_property_that_its_parent_was_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 holds a lock meanwhile, for all instances of the class."""
    begun, release, parent = threading.Event(), threading.Event(), os.getpid()
    refusal = gsparse.products.prepared.PreparedMatrix.refusal

    def slow_refusal(self: gsparse.products.prepared.PreparedMatrix) -> object:
        if os.getpid() == parent:
            begun.set()
            release.wait()
        return refusal(self)

    A, B = (GpuSparseMatrix(laplacian(5), device="cpu") for _ in range(2))
    monkeypatch.setattr(gsparse.products.prepared.PreparedMatrix, "refusal", slow_refusal)
    thread = threading.Thread(target=lambda: A.plan)
    thread.start()
    begun.wait()
    try:
        assert in_fork(lambda: B.plan.format in gsparse.FORMATS) == 0
    finally:
        release.set()
        thread.join()


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_waits_until_no_thread_compiles() -> None:
    from numba.core.compiler_lock import global_compiler_lock

    held, finished = threading.Event(), []

    def compile_something() -> None:
        with global_compiler_lock:
            held.set()
            threading.Event().wait(0.05)  # `os.fork` waits meanwhile
            finished.append(True)

    def compiled_before_the_fork() -> bool:
        with global_compiler_lock:
            return bool(finished)

    thread = threading.Thread(target=compile_something)
    thread.start()
    held.wait()
    assert in_fork(compiled_before_the_fork) == 0
    thread.join()


@pytest.mark.filterwarnings("ignore::gsparse.errors.HostLoanWarning")
@pytest.mark.parametrize("name", ["data", "indices", "indptr"])
def test_kernels_read_no_memory_that_was_lent(device: Device, name: str, rng: np.random.Generator) -> None:
    """Otherwise a thread that writes to it makes a kernel of another thread read outside of its arrays."""
    S = sp.random_array((30, 20), density=0.2, format="csr", rng=rng)
    A, x = GpuSparseMatrix(S, device=device), np.ones(20)
    if device.xp is not np:
        pytest.skip("kernels of a GPU read no memory of the host")
    for is_held in (False, True):
        A @ x
        used_before = A._prepared()[0].csr
        held = getattr(A, name)
        A @ x
        for used in (used_before, A._prepared()[0].csr):
            assert not np.shares_memory(held, getattr(used, name)), is_held
        if not is_held:
            del held


@pytest.mark.parametrize("kind", ["plan", "product", "columns"])
def test_of_two_threads_that_need_a_format_first_one_builds_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, double = GpuSparseMatrix(laplacian(5), device="cpu")._prepared()[0], np.dtype(float)
    asked, results, threads = threading.Event(), [], []

    class Items(dict):
        """Says when another thread than that of the test has found nothing."""

        def get(self, *args: object) -> object:
            if threading.current_thread() is not threading.main_thread():
                asked.set()
            return super().get(*args)

    items = kind if kind == "columns" else f"{kind}s"
    setattr(prepared._formats, items, Items())
    make = f"_{'make_plan' if kind == 'plan' else 'build' if kind == 'product' else 'build_columns'}"
    original, calls = getattr(type(prepared), make), []

    def use() -> None:
        results.append(getattr(prepared, kind)(double, double))

    def slow(self: object, *args: object) -> object:
        calls.append(args)
        if len(calls) == 1:
            threads.append(threading.Thread(target=use))
            threads[0].start()
            assert asked.wait(60)
        return original(self, *args)

    monkeypatch.setattr(type(prepared), make, slow)
    use()
    threads[0].join()
    assert len(calls) == 1
    assert results[0] is results[1]


def test_results_register_no_locks_for_forks() -> None:
    A = GpuSparseMatrix(laplacian(5), device="cpu")
    A * 2.0  # Now A has the locks that this operation needs.
    before = len(locks._locks)
    results = [A * 2.0 for _ in range(10)]
    for result in results:
        result @ np.ones(25)
    assert len(locks._locks) == before
