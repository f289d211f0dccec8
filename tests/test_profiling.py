"""Profiles: rows that add up to the wall-clock time, nesting, threads, lines of the program, no cost when closed."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
from gsparse.device.base import Device
from gsparse.linalg import cg, gmres, jacobi
from gsparse.profiling import recording
from gsparse.profiling.profile import Profile
from gsparse.profiling.rows import OUTSIDE, Row
from tests.proof.emulated_device import DeviceWithBlocksTogether, EmulatedDevice
from tests.support import on_device

FILE = Path(__file__).name


def line(n: int = 300) -> Any:
    return sp.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(n, n), format="csr")


def only(p: Profile, kind: str, name: str, by: str = "operation") -> Row:
    """Return the only row of this operation."""
    (row,) = [row for row in p.rows(by) if (row.kind, row.name) == (kind, name)]
    return row


def names(p: Profile) -> set[str]:
    return {row.name for row in p.rows()}


# ------------------------------------------------------------------------------------------------------- what is shown


def test_rows_of_the_own_thread_add_up_to_the_wall_clock_time(device: Device) -> None:
    S = line()
    begin = time.perf_counter()
    with gsparse.profile() as p:
        A = gsparse.GpuSparseMatrix(S, device=device)
        for _ in range(3):
            A @ on_device(device, np.ones(300))
        cg(A + A, on_device(device, np.ones(300)))
    outer = time.perf_counter() - begin
    rows = p.rows()
    # Kernels are compiled ahead on other threads.
    assert sum(row.seconds for row in rows if not row.is_other_thread) == pytest.approx(p.seconds)
    assert p.seconds <= outer
    assert {row.kind for row in rows} >= {"product", "solver", "step", "set-up", "sparse algebra", OUTSIDE}
    assert all(row.seconds >= 0 for row in rows if not row.is_estimated)
    for by in ("matrix", "line"):
        assert sum(row.seconds for row in p.rows(by) if not row.is_other_thread) == pytest.approx(p.seconds)


def test_a_product_has_its_calls_bytes_matrix_and_line(device: Device) -> None:
    A = gsparse.GpuSparseMatrix(line(), device=device, format="csr_scalar" if device.kind == "cpu" else "csr_vector")
    A.name = "stiffness"
    x = on_device(device, np.ones(300))
    A @ x
    with gsparse.profile() as p:
        for _ in range(4):
            A @ x
            here = sys._getframe().f_lineno - 1
    row = only(p, "product", "A @ x", by="line")
    assert (row.calls, row.place) == (4, f"{FILE}:{here}")
    assert row.nbytes == 4 * (A.stored.nbytes + 2 * 300 * 8)
    assert row.device == device.name
    assert only(p, "product", "A @ x", by="matrix").matrix == f"stiffness, {A.plan.format}"
    A.name = None
    with gsparse.profile() as p:
        A @ x
    assert only(p, "product", "A @ x", "matrix").matrix.startswith("300 x 300, 898 entries of float64, csr_")


@pytest.mark.parametrize("columns", [2, 5])
def test_products_with_columns_are_rows_of_their_own(device: Device, columns: int) -> None:
    A = gsparse.GpuSparseMatrix(line(), device=device)
    X = on_device(device, np.ones((300, columns)))
    A @ X
    with gsparse.profile() as p:
        A @ X
        A @ X.astype(np.float32)  # on the general path
    assert only(p, "product", f"A @ X, {columns} columns").calls == 2


def test_the_set_up_of_a_matrix_is_recorded_once(device: Device) -> None:
    with gsparse.profile() as p:
        A = gsparse.GpuSparseMatrix(line(), device=device)
        assert A.plan
        for _ in range(3):
            A @ on_device(device, np.ones(300))
    for name in ("new matrix", "check a matrix and count its rows", "choose a format", "store a format"):
        assert only(p, "set-up", name).calls == 1


def test_a_solver_has_rows_for_its_steps_and_its_preconditioner(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.kind != "cpu":  # Otherwise a GPU would run whole iterations of such a small system as one kernel.
        monkeypatch.setitem(device.__dict__, "runs_blocks_together", False)
    A = gsparse.GpuSparseMatrix(line(), device=device)
    with gsparse.profile() as p:
        result = cg(A, on_device(device, np.ones(300)), M=jacobi(A), full_output=True)
    solver = only(p, "solver", "cg")
    assert (solver.calls, solver.iterations) == (1, result.iterations)
    assert only(p, "preconditioner", "jacobi").calls >= result.iterations
    steps = {row.name for row in p.rows() if row.kind == "step"}
    assert steps >= {"cg: update", "cg: preconditioned_direction", "cg: weigh"}
    assert only(p, "step", "cg: update").nbytes >= 3 * 300 * 8 * result.iterations


@pytest.mark.parametrize("M", [None, jacobi])
def test_iterations_in_one_kernel_have_one_row(M: Callable[..., Any] | None) -> None:
    """What runs before the first iteration has rows of its own, and nothing is counted twice."""
    device = DeviceWithBlocksTogether(32)
    A = gsparse.GpuSparseMatrix(line(), device=device)
    preconditioner = M and M(A)
    with gsparse.profile() as p:
        result = cg(A, np.ones(300), M=preconditioner, full_output=True)
    launches = -(-result.iterations // 64)  # One kernel runs 64 iterations, see `solve_loop`.
    row = only(p, "step", "cg: iterations in one kernel")
    assert launches <= row.calls <= launches + 1
    assert not row.is_estimated
    before = {"cg: start", "cg: direction"} if M is None else {"cg: start", "cg: weigh", "cg: preconditioned_direction"}
    others = {other.name: other.calls for other in p.rows() if other.kind in ("step", "preconditioner")}
    del others[row.name]
    assert others == dict.fromkeys(before if M is None else {*before, "jacobi"}, 1)
    assert sum(other.seconds for other in p.rows() if not other.is_other_thread) == pytest.approx(p.seconds)


@pytest.mark.parametrize("lanes", [32, 64])
@pytest.mark.parametrize("solve", [cg, gmres])
def test_the_steps_in_graphs_are_counted_and_scaled_from_one_iteration(lanes: int, solve: Callable[..., Any]) -> None:
    device = EmulatedDevice(lanes)
    A = gsparse.GpuSparseMatrix(line(), device=device)
    with gsparse.profile() as p:
        result = solve(A, np.ones(300), rtol=1e-12, full_output=True)
    steps = [row for row in p.rows() if row.kind == "step" and row.is_estimated]
    assert steps
    assert all(row.device_seconds > 0 for row in steps)
    assert sum(row.seconds for row in p.rows()) == pytest.approx(p.seconds)
    if solve is cg:
        assert only(p, "step", "cg: update").calls >= result.iterations
        # No time is left to the graphs themselves, all of it is that of the steps.
        assert only(p, "solver", "cg: iterations in CUDA graphs").device_seconds == pytest.approx(0.0, abs=1e-9)
    assert "* in CUDA graphs" in str(p)


def test_a_profile_does_not_change_a_solve(device: Device) -> None:
    A, b = gsparse.GpuSparseMatrix(line(), device=device), np.ones(300)
    for solve in (cg, gmres):
        plain = solve(A, b, rtol=1e-10, full_output=True)
        with gsparse.profile():
            recorded = solve(A, b, rtol=1e-10, full_output=True)
        np.testing.assert_array_equal(plain.x, recorded.x)
        np.testing.assert_array_equal(plain.residuals, recorded.residuals)


def test_copies_between_host_and_device_are_recorded() -> None:
    A = gsparse.GpuSparseMatrix(line(), device=EmulatedDevice(32))
    x = np.ones(300, np.float32)
    A @ x
    with gsparse.profile() as p:
        A.data
    assert only(p, "host", "A.data: the program asks for a host array").calls == 1
    assert only(p, "copy", "device to host").nbytes == 898 * 8


def test_operations_on_the_host_are_recorded_with_the_reason() -> None:
    A = gsparse.GpuSparseMatrix(line().astype(np.longdouble), device="cpu")
    B = gsparse.GpuSparseMatrix(line(), device="cpu")
    with gsparse.profile() as p:
        A @ np.ones(300)
        A @ A
        B.tolil()
    assert names(p) >= {
        "product: float128 values" if np.dtype(np.longdouble).name == "float128" else "product",
        "sparse @ sparse: values of extended precision",
        "tolil: SciPy computes it",
    }


def test_a_compilation_is_recorded() -> None:
    from gsparse.device.compilation import COMPILE_NOTICE

    with gsparse.profile() as p, COMPILE_NOTICE, COMPILE_NOTICE:
        time.sleep(0.01)
    row = only(p, "compilation", "kernels")
    assert row.calls == 2
    assert 0.01 <= row.seconds <= p.seconds
    assert row.inclusive_seconds == pytest.approx(row.seconds)  # The inner one is part of the outer one.


# ---------------------------------------------------------------------------------------------------- nesting, threads


def test_nested_profiles_each_record_what_is_inside() -> None:
    A, x = gsparse.GpuSparseMatrix(line(), device="cpu"), np.ones(300)
    with gsparse.profile() as outer:
        A @ x
        with gsparse.profile() as inner:
            A @ x
            A @ x
        A @ x
    A @ x
    assert only(inner, "product", "A @ x").calls == 2
    assert only(outer, "product", "A @ x").calls == 4
    assert inner.seconds < outer.seconds


def test_other_threads_have_rows_of_their_own() -> None:
    A, x = gsparse.GpuSparseMatrix(line(), device="cpu"), np.ones(300)
    A @ x

    def work() -> None:
        for _ in range(5):
            A @ x

    with gsparse.profile() as p:
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        A @ x
    rows = [row for row in p.rows() if row.name == "A @ x"]
    assert {(row.is_other_thread, row.calls) for row in rows} == {(True, 10), (False, 1)}
    for by in ("operation", "matrix", "line"):
        assert any(row.is_other_thread for row in p.rows(by))
        assert sum(row.seconds for row in p.rows(by) if not row.is_other_thread) == pytest.approx(p.seconds)
    assert "in other threads, at the same time" in str(p)


def test_a_profile_inside_of_an_operation_counts_the_time_of_the_same_operation() -> None:
    """The outer solve began before the profile, so no row of the profile contains the seconds of the inner one."""
    A, b = gsparse.GpuSparseMatrix(line(), device="cpu"), np.ones(300)
    profiles: list[Profile] = []

    def callback(x: Any) -> None:
        if not profiles:
            with gsparse.profile() as p:
                cg(A, b)
            profiles.append(p)

    with gsparse.profile():
        cg(A, b, callback=callback)
    solver = only(profiles[0], "solver", "cg")
    assert solver.calls == 1
    assert solver.inclusive_seconds >= solver.seconds > 0


def test_an_error_inside_of_an_operation_closes_its_span() -> None:
    A = gsparse.GpuSparseMatrix(line(), device="cpu")
    with gsparse.profile() as p:
        with pytest.raises(gsparse.GsparseError):
            cg(A, np.ones(299))
        A @ np.ones(300)
    assert only(p, "product", "A @ x", "line").place.startswith(FILE)
    assert recording._STATE.stack == []


def test_a_profile_that_ends_by_an_exception_keeps_what_it_recorded() -> None:
    A = gsparse.GpuSparseMatrix(line(), device="cpu")
    with pytest.raises(KeyboardInterrupt), gsparse.profile() as p:
        A @ np.ones(300)
        raise KeyboardInterrupt
    assert only(p, "product", "A @ x").calls == 1
    assert recording.recorder is None


def test_a_profile_records_once() -> None:
    with gsparse.profile() as p:
        pass
    with pytest.raises(RuntimeError, match="make a new one"), p:
        pass
    assert [row.kind for row in p.rows()] == [OUTSIDE]
    with pytest.raises(ValueError, match="'operation', 'matrix' or 'line'"):
        p.rows("colour")


# --------------------------------------------------------------------------------------------------------------- costs


def test_seconds_of_the_device_are_counted_once_with_an_operation_of_the_host_between() -> None:
    device, other = DeviceWithEvents(), DeviceWithEvents()
    spans = [
        ("linear algebra", "solve", device),
        ("solver", "cg"),
        ("copy", "others", other),
        ("step", "update", device),
    ]
    with gsparse.profile() as p, ExitStack() as opened:
        for span in spans:
            opened.enter_context(recording.span(*span))
    seconds = {row.name: row.device_seconds for row in p.rows() if row.kind != OUTSIDE}
    assert seconds == {"solve": 2.0, "cg": 0.0, "others": 1.0, "update": 1.0}


class DeviceWithEvents(EmulatedDevice):
    """An emulated GPU with events, between two of which lies a second."""

    has_events = True

    def __init__(self) -> None:
        super().__init__(32)
        self.num_recorded = self.num_read = 0
        self.released: list[int] = []

    def record_event(self) -> int:
        self.num_recorded += 1
        return self.num_recorded

    def seconds_between(self, begin: int, end: int) -> float:
        self.num_read += 1
        return float(end - begin)

    def release_event(self, event: int) -> None:
        self.released.append(event)


# ------------------------------------------------------------------------------------------------------ output formats


def test_json_has_all_tables(tmp_path: Path) -> None:
    A = gsparse.GpuSparseMatrix(line(), device="cpu")
    with gsparse.profile() as p:
        A @ np.ones(300)
    text = p.to_json(tmp_path / "profile.json")
    assert (tmp_path / "profile.json").read_text() == text
    found = json.loads(text)
    assert sum(row["seconds"] for row in found["by_operation"]) == pytest.approx(found["seconds"])
    assert {"by_matrix", "by_line", "copy_bandwidths"} <= set(found)


def test_the_table_names_what_it_does_not_show() -> None:
    A = gsparse.GpuSparseMatrix(line(), device="cpu")
    with gsparse.profile() as p:
        cg(A + A, A @ np.ones(300))
    text = p.table(most=2)
    assert "other rows" in text
    assert OUTSIDE in text
    assert "wall-clock time" in text


def test_nvtx_ranges_are_opened_and_closed_if_nvtx_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    nvtx, ranges = ModuleType("nvtx"), []
    nvtx.push_range = ranges.append  # type: ignore[attr-defined]
    nvtx.pop_range = lambda *args: ranges.append(None)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nvtx", nvtx)
    monkeypatch.setattr(recording, "find_spec", lambda name: nvtx if name == "nvtx" else None)
    monkeypatch.setattr(recording, "_push_range", None)
    monkeypatch.setattr(recording, "_pop_range", None)
    A = gsparse.GpuSparseMatrix(line(), device="cpu")
    A @ np.ones(300)
    with gsparse.profile():
        A @ np.ones(300)
    assert ranges == ["product: A @ x", None]


# ------------------------------------------------------------------------------------------------------ lines of users


def test_the_line_of_the_user_is_found_through_a_library() -> None:
    import scipy.sparse.linalg

    A = gsparse.GpuSparseMatrix(line(), device="cpu")
    with gsparse.profile() as p:
        scipy.sparse.linalg.cg(A, np.ones(300))
        here = sys._getframe().f_lineno - 1
    assert only(p, "product", "A @ x", "line").place == f"{FILE}:{here}"
