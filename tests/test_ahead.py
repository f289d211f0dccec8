"""Kernels are compiled ahead, each of them once, by several threads."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from gsparse.device.compilation import KernelStore, recorded_kernels
from gsparse.kernels import gpu

NAMES = [("a.cu", f"kernel<{n}>") for n in range(20)]


def kernel() -> None:
    """Stand in for a compiled kernel."""


class Compiler:
    """Counts compilations, and waits for `go` in each of them, after it has released `began`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.threads: set[str] = set()
        self.go, self.began = threading.Event(), threading.Semaphore(0)
        self.fails = False

    def __call__(self, source: str, expression: str) -> Any:
        self.calls.append((source, expression))
        self.threads.add(threading.current_thread().name)
        self.began.release()
        assert self.go.wait(60)
        if self.fails:
            raise ValueError(expression)
        return kernel


def test_each_kernel_is_compiled_once_by_whoever_comes_first() -> None:
    compiler = Compiler()
    store = KernelStore(compiler, 3)
    store.begin(NAMES)
    store.begin(NAMES)  # again: nothing more is compiled
    compiler.go.set()
    assert all(store.get(*key) is kernel for key in NAMES)
    assert sorted(compiler.calls) == sorted(NAMES)
    assert set(store.compiled) == set(NAMES)


def test_threads_compile_at_the_same_time_and_nobody_waits_for_kernels_that_wait_in_line() -> None:
    compiler = Compiler()
    store = KernelStore(compiler, 1)
    store.begin(NAMES)
    assert compiler.began.acquire(timeout=60)
    got: list[Any] = []
    caller = threading.Thread(target=lambda: got.append(store.get(*NAMES[-1])), name="caller")
    caller.start()
    assert compiler.began.acquire(timeout=60)  # while the first thread still compiles
    assert compiler.calls == [NAMES[0], NAMES[-1]]
    compiler.go.set()
    caller.join(60)
    assert got == [kernel]
    assert compiler.threads >= {"caller", "gsparse-compiler"}
    assert all(store.get(*key) is kernel for key in NAMES)
    assert sorted(compiler.calls) == sorted(NAMES)


def test_a_kernel_can_be_compiled_after_a_caller_was_interrupted() -> None:
    compiler = Compiler()
    store = KernelStore(compiler, 1)
    store.begin(NAMES)
    assert compiler.began.acquire(timeout=60)
    compile_kernel = store._compile

    def interrupted(source: str, expression: str) -> Any:
        raise KeyboardInterrupt

    store._compile = interrupted
    with pytest.raises(KeyboardInterrupt):
        store.get(*NAMES[-1])
    store._compile = compile_kernel
    compiler.go.set()
    got: list[Any] = []
    caller = threading.Thread(target=lambda: got.append(store.get(*NAMES[-1])), daemon=True)
    caller.start()
    caller.join(60)
    assert got == [kernel]


def test_the_error_of_a_compilation_reaches_the_caller_that_needs_the_kernel() -> None:
    compiler = Compiler()
    compiler.fails = True
    compiler.go.set()
    store = KernelStore(compiler, 2)
    store.begin(NAMES)
    with pytest.raises(ValueError, match="kernel<3>"):
        store.get(*NAMES[3])
    compiler.fails = False
    assert store.get(*NAMES[3]) is kernel


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("routine", ["A @ x", "A @ A", "gmres", "ic0", "amg"])
def test_recorded_kernels_are_kernels(routine: str, dtype: str) -> None:
    kernels = recorded_kernels(routine, np.dtype(dtype), np.dtype(np.int32))
    known = {*gpu.instantiations(32), *gpu.spmv.instantiations(32)}
    assert kernels
    assert set(kernels) <= known
    assert recorded_kernels(routine, np.dtype(dtype), np.dtype(np.int64)) == ()
