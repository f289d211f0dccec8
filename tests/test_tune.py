"""Tuning: products are right while candidates are timed, the fastest is chosen, and its times are stored on disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.products.tuning import (
    MAX_CANDIDATES,
    MAX_REPEATS,
    ROUNDS,
    cache_path,
    forget,
    formats_to_time,
)
from tests.support import STRUCTURES, assert_product, random_values

WAYS: tuple[Any, ...] = (True, "lazy")

# Contents of a damaged cache, instead of times by format.
SPOILED_TIMES: dict[str, Any] = {
    "no JSON": "{",
    "no times": "{}",
    "a list": "[1, 2]",
    "an unknown format": '{"nope": [1e-9, 0.0]}',
    "an integer beyond float64": f'{{"csr_vector": [1{"0" * 400}, 0.0]}}',
    "no spread": '{"csr_vector": 1e-5}',
    "lists in lists": "[" * 100_000,
    "not a number": '{"csr_vector": [NaN, 0.0]}',
    "a negative time": '{"csr_vector": [-1.0, 0.0]}',
    "bytes": b"\xff\x00",
    "nothing": None,
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GSPARSE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def S(rng: np.random.Generator) -> sp.csr_array:
    return STRUCTURES["ragged, 1001 rows"](rng)


class Clock:
    """A replacement of a device's clock, which returns prescribed times of the candidates in turn."""

    def __init__(self, device: Device, monkeypatch: pytest.MonkeyPatch, seconds: list[float]) -> None:
        self.asked, self._seconds = 0, seconds
        monkeypatch.setattr(device, "timings_of", self.timings_of, raising=False)
        monkeypatch.setattr(device, "timed", self.timed, raising=False)

    def timings_of(self, call: Callable[[], None]) -> list[float]:
        return [self.timed(call)()]

    def timed(self, call: Callable[[], None]) -> Callable[[], float]:
        call()
        seconds = self._seconds[self.asked % len(self._seconds)]
        self.asked += 1
        return lambda: seconds


def candidates_of(S: Any, device: Device) -> list[str]:
    return formats_to_time(GpuSparseMatrix(S, device=device).plan, 1000)


def is_undecided(A: GpuSparseMatrix) -> bool:
    return "will be timed" in A.plan.reason


def multiply_until_decided(A: GpuSparseMatrix, S: Any, rng: np.random.Generator) -> None:
    for _ in range((ROUNDS * (1 + MAX_REPEATS) + 2) * MAX_CANDIDATES):
        x = random_values(rng, S.shape[1], float)
        assert_product(A @ x, S, x)
        if not is_undecided(A):
            break


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("structure", ["ragged, 1001 rows", "one dense row", "no rows", "no columns", "nothing"])
def test_tuned_products_are_right_from_the_first_to_the_last(
    device: Device, structure: str, way: Any, rng: np.random.Generator
) -> None:
    S = STRUCTURES[structure](rng)
    A = GpuSparseMatrix(S, device=device, tune=way)
    multiply_until_decided(A, S, rng)
    assert sum(c.measured is not None for c in A.plan.candidates) >= 2
    z = random_values(rng, S.shape[0], float)
    for _ in range(3):
        assert_product(A.T @ z, S.T.tocsr(), z)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fastest", [0, 1, -1])
def test_the_fastest_candidate_is_chosen_and_the_plan_shows_all_times(
    device: Device, fastest: int, way: Any, S: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = candidates_of(S, device)
    seconds = [(i + 2) * 1e-5 for i in range(len(names))]
    seconds[fastest] = 1e-5
    clock = Clock(device, monkeypatch, seconds)
    A = GpuSparseMatrix(S, device=device, tune=way)
    when = "at the first product" if way is True else "in the first products"
    assert f"will be timed {when}" in A.plan.reason
    multiply_until_decided(A, S, rng)
    plan = A.plan
    assert "will be" not in plan.reason
    assert plan.format == names[fastest]
    assert "10.0 µs measured" in plan.reason
    assert {c.format: c.measured for c in plan.candidates if c.measured is not None} == dict(
        zip(names, seconds, strict=True)
    )
    assert str(plan).splitlines()[2].endswith("measured µs")
    asked = clock.asked
    multiply_until_decided(A, S, rng)
    assert clock.asked == asked
    assert type(A.stored) is type(GpuSparseMatrix(S, device=device, format=names[fastest]).stored)


@pytest.mark.parametrize("way", WAYS)
def test_measurements_are_stored_for_matrices_with_the_same_features(
    device: Device, way: Any, S: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    names = candidates_of(S, device)
    clock = Clock(device, monkeypatch, [(len(names) - i) * 1e-5 for i in range(len(names))])
    multiply_until_decided(GpuSparseMatrix(S, device=device, tune=way), S, rng)
    assert cache_path() == cache / "verdicts.sqlite"
    assert cache_path().is_file()
    asked, T = clock.asked, S.copy()
    T.data = random_values(rng, T.nnz, float)
    for again in WAYS:
        A = GpuSparseMatrix(T, device=device, tune=again)
        multiply_until_decided(A, T, rng)
        assert A.plan.format == names[-1]
        assert "measured before" in A.plan.reason
    assert clock.asked == asked
    forget()
    multiply_until_decided(GpuSparseMatrix(S, device=device, tune=True), S, rng)
    assert clock.asked > asked


@pytest.mark.parametrize("options", [{"dtype": np.float32}, {"other": True}])
def test_a_matrix_with_other_features_is_measured_separately(
    device: Device, options: Any, S: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(device, monkeypatch, [1e-5])
    multiply_until_decided(GpuSparseMatrix(S, device=device, tune=True), S, rng)
    asked = clock.asked
    T = S[:900] if "other" in options else S.astype(np.float32)
    multiply_until_decided(GpuSparseMatrix(T, device=device, tune=True), T, rng)
    assert clock.asked == asked + len(candidates_of(T, device))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("spoiled", ["no database", "no table", "a folder", "a file above", *SPOILED_TIMES])
@pytest.mark.few(9)
def test_a_cache_that_cannot_be_read_is_no_error(
    device: Device, spoiled: str, way: Any, S: Any, rng: np.random.Generator, cache: Path
) -> None:
    if spoiled == "a file above":
        cache.write_text("")
    elif spoiled == "a folder":
        cache_path().mkdir(parents=True)
    elif spoiled in ("no database", "no table"):
        cache.mkdir()
        if spoiled == "no database":
            cache_path().write_bytes(b"\x00rubbish" * 1000)
        else:
            cache_path().write_bytes(b"")
    else:
        GpuSparseMatrix(S, device=device, tune=True) @ np.ones(S.shape[1])
        with closing(sqlite3.connect(cache_path())) as database, database:
            database.execute("UPDATE verdicts SET times = ?", (SPOILED_TIMES[spoiled],))
    A = GpuSparseMatrix(S, device=device, tune=way)
    multiply_until_decided(A, S, rng)
    assert sum(c.measured is not None for c in A.plan.candidates) >= 2


def test_times_are_not_stored_for_a_user_without_a_home_directory(S: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Any:
        raise RuntimeError("Could not determine home directory.")

    for variable in ("GSPARSE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pathlib.Path.home", home)
    A = GpuSparseMatrix(S, device="cpu", tune=True)
    x = np.ones(S.shape[1])
    assert_product(A @ x, S, x)
    assert "measured" in A.plan.reason


def test_nothing_is_timed_for_a_requested_format_or_few_products(
    device: Device, S: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(device, monkeypatch, [1e-5])
    for options in ({"format": "csr_vector"}, {"expected_products": 1}):
        multiply_until_decided(GpuSparseMatrix(S, device=device, tune=True, **options), S, rng)
    assert clock.asked == 0


def test_a_lazy_product_scales_and_adds_once(
    device: Device, S: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gsparse

    Clock(device, monkeypatch, [1e-5, 2e-5])
    A = GpuSparseMatrix(S, device=device, tune="lazy")
    for _ in range(5 * MAX_CANDIDATES):
        x, y = random_values(rng, S.shape[1], float), random_values(rng, S.shape[0], float)
        out = y.copy()
        gsparse.spmv(A, x, alpha=2, beta=-3, out=out)
        np.testing.assert_allclose(out, 2 * (S @ x) - 3 * y, rtol=1e-10, atol=1e-10)


def test_concurrent_threads_tune_a_matrix_once(
    device: Device, S: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(device, monkeypatch, [1e-5, 2e-5])
    remembered: list[Any] = []
    monkeypatch.setattr("gsparse.products.building.remember", lambda key, times: remembered.append(times))
    A, vectors = (
        GpuSparseMatrix(S, device=device, tune="lazy"),
        [random_values(rng, S.shape[1], float) for _ in range(40)],
    )
    with ThreadPoolExecutor(8) as pool:
        products = list(pool.map(lambda x: A @ x, vectors))
    for x, y in zip(vectors, products, strict=True):
        assert_product(y, S, x)
    multiply_until_decided(A, S, rng)
    assert len(remembered) == 1


def test_a_product_during_graph_capture_is_not_timed(
    device: Device, S: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(device, monkeypatch, [1e-5, 2e-5])
    A = GpuSparseMatrix(S, device=device, tune="lazy")
    names = candidates_of(S, device)
    for _ in range(4 * len(names)):
        A @ random_values(rng, S.shape[1], float)
    asked = clock.asked
    monkeypatch.setattr(device, "is_capturing", lambda: True, raising=False)
    multiply_until_decided(A, S, rng)
    assert clock.asked == asked
    assert not any(c.measured for c in A.plan.candidates)  # reading the times would break the capture
    monkeypatch.setattr(device, "is_capturing", lambda: False, raising=False)
    multiply_until_decided(A, S, rng)
    assert any(c.measured for c in A.plan.candidates)


# ------------------------------------------------------------------------------------------------- a busy machine


@pytest.mark.parametrize("way", WAYS)
def test_a_matrix_that_was_tuned_on_a_busy_machine_is_tuned_again_and_the_plan_says_why(
    device: Device, way: Any, S: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = candidates_of(S, device)
    growing = Clock(device, monkeypatch, [1.5**i * 1e-5 for i in range(1000)])
    monkeypatch.setattr(device, "timings_of", lambda call: [growing.timed(call)() for _ in range(3)], raising=False)
    A = GpuSparseMatrix(S, device=device, tune=way)
    multiply_until_decided(A, S, rng)
    assert "measured on a busy machine (timings differ by " in A.plan.reason
    assert growing.asked >= 3 * len(names) * (1 + MAX_REPEATS)
    clock = Clock(device, monkeypatch, [(len(names) - i) * 1e-5 for i in range(len(names))])
    B = GpuSparseMatrix(S, device=device, tune=way)
    multiply_until_decided(B, S, rng)
    assert clock.asked > 0
    assert (B.plan.format, "busy" in B.plan.reason) == (names[-1], False)
