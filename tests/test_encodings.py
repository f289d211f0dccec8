"""Pairs of formats and encodings on difficult structures: kernels are called directly, with poisoned outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gsparse
from gsparse.device.base import Device
from gsparse.formats.launch import Launch
from tests.encodings import (
    HURTING,
    VALUES,
    assert_decodes,
    assert_scaled_product,
    covering,
    hurting,
    multiply,
    patterned,
    store,
    values_of_kind,
)
from tests.proof.emulated_device import EmulatedDevice
from tests.support import INDEX_DTYPES, random_values, with_types

FORMATS = tuple(f for f in gsparse.FORMATS if f not in ("auto", "row_pattern"))
COMPUTE = ("float32", "float64", "complex64", "complex128", "int64")


def entries_fit(format: str, columns: Any, values: str, compute: str, **rest: Any) -> bool:
    if format == "row_lanes" and columns is not None:
        return False  # Its columns have one encoding.
    return (columns != "uint8" or format.endswith("ellpack")) and values_fit(values, compute)


def values_fit(values: str, compute: str, **rest: Any) -> bool:
    return values != "narrow" or compute in ("float64", "complex128")


def named(cases: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(case, id=", ".join(str(level) for level in case.values())) for case in cases]


def typed(S: Any, values: str, compute: str, number: int, rng: np.random.Generator) -> Any:
    """Return a structure with values of a kind, every third with a stored dtype that widens to the compute dtype."""
    kind = np.dtype(compute)
    stored = {"float64": "float32", "complex128": "float64"}.get(compute, compute) if number % 3 == 0 else compute
    matrix = with_types(S, stored if values not in ("narrow",) else kind, INDEX_DTYPES[number % 2], rng)
    matrix.data = values_of_kind(values, rng, matrix.nnz, matrix.dtype)
    return matrix


def check_products(device: Device, stored: Any, format: str, S: Any, compute: str, rng: np.random.Generator) -> None:
    """Check A·x, conj(A)·x and alpha·A·x + beta·y, each with another x."""
    draw = lambda n: random_values(rng, n, compute)  # noqa: E731
    x = draw(S.shape[1])
    assert_scaled_product(multiply(device, stored, format, x), S, x, 1, 0, None)
    x, y, alpha, beta = draw(S.shape[1]), draw(S.shape[0]), draw(1)[0], draw(1)[0]
    got = multiply(device, stored, format, x, alpha=alpha, beta=beta, y=y, conjugate=True)
    conjugated = S.copy()
    conjugated.data = S.data.conj()
    assert_scaled_product(got, conjugated, x, alpha, beta, y)
    got = multiply(device, stored, format, x, alpha=alpha, launch=Launch(128, 8))
    assert_scaled_product(got, S, x, alpha, 0, None)


ENTRIES = covering(
    {
        "format": FORMATS,
        "columns": (None, "uint16", "uint8"),
        "values": VALUES,
        "compute": COMPUTE,
        "structure": tuple(HURTING),
    },
    entries_fit,
)


@pytest.mark.parametrize("case", named(ENTRIES))
@pytest.mark.few(2)
def test_every_encoding_of_entries_multiplies_right(
    device: Device, case: dict[str, Any], rng: np.random.Generator
) -> None:
    S = typed(hurting(device, case["structure"], rng), case["values"], case["compute"], ENTRIES.index(case), rng)
    format, columns, values, compute = (case[name] for name in ("format", "columns", "values", "compute"))
    stored = store(device, S, format, columns=columns, values=values, compute=compute)
    assert_decodes(stored, S, device.lanes)
    check_products(device, stored, format, S, compute, rng)


PATTERNS = covering(
    {"values": ("shared", *VALUES), "compute": COMPUTE, "codes": ("uint8", "uint16"), "rows a thread": (1, 4)},
    lambda values, compute, **rest: values_fit(values, compute),
)


@pytest.mark.parametrize("case", named(PATTERNS))
@pytest.mark.few(2)
def test_every_encoding_of_row_patterns_multiplies_right(
    device: Device, case: dict[str, Any], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.kind == "gpu" and case["rows a thread"] == 4:
        monkeypatch.setattr("gsparse.kernels.gpu.spmv._MANY_ROWS", 0)
    values, compute, number = case["values"], case["compute"], PATTERNS.index(case)
    S = patterned(rng, *((1001, 40) if case["codes"] == "uint8" else (1500, 400)))
    if values == "shared":
        # Values belong to the pattern: all rows of one pattern have the same values.
        by_value = {v: random_values(rng, 1, compute)[0] for v in np.unique(S.data)}
        made = with_types(S, compute, INDEX_DTYPES[number % 2], rng)
        made.data = np.array([by_value[v] for v in S.data], compute)
    else:
        made = typed(S, values, compute, number, rng)
    stored = store(device, made, "row_pattern", values=values, compute=compute)
    assert stored.codes.dtype == case["codes"]
    assert (stored.values is None) == (values == "shared")
    assert_decodes(stored, made, device.lanes)
    check_products(device, stored, "row_pattern", made, compute, rng)


# Structures for each division of the work, in each encoding in which a kernel could read too much.
GUARDED = (
    ("ragged", "uint8", "dictionary of uint8"),
    ("sorted and split", None, "plain"),
    ("sorted and split", "uint16", "equal"),
    ("chunks", "uint16", "plain"),
    ("empty rows", "uint8", "equal"),
)


def places_of_infinity(got: Any) -> tuple[Any, Any, Any]:
    return np.isnan(got), np.isposinf(got), np.isneginf(got)


@pytest.mark.parametrize(("structure", "columns", "values"), GUARDED)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.few(3)
def test_inf_and_nan_in_x_reach_only_the_rows_that_read_them(
    device: Device, format: str, structure: str, columns: Any, values: str, rng: np.random.Generator
) -> None:
    columns = "uint16" if columns == "uint8" and not format.endswith("ellpack") else columns
    S = hurting(device, structure, rng)
    S.data = values_of_kind(values, rng, S.nnz, float)
    stored = store(device, S, format, columns=columns, values=values)
    # Elements that no row reads are NaN, so that a kernel that reads them for padding is noticed.
    read = np.unique(S.indices)
    x = np.full(S.shape[1], np.nan)
    x[read] = random_values(rng, read.size, float)
    assert_scaled_product(multiply(device, stored, format, x), S, np.where(np.isnan(x), 0.0, x), 1, 0, None)
    for place in (0, S.nnz // 2, S.nnz - 1):
        for value in (np.inf, -np.inf, np.nan):
            x[S.indices[place]] = value
            with np.errstate(invalid="ignore"):
                expected = S @ x
            for one, other in zip(
                places_of_infinity(multiply(device, stored, format, x)), places_of_infinity(expected), strict=True
            ):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("shared", [True, False])
def test_inf_and_nan_in_x_reach_only_the_rows_whose_pattern_reads_them(
    device: Device, shared: bool, rng: np.random.Generator
) -> None:
    S = patterned(rng, 1001, 40)
    stored = store(device, S, "row_pattern", values="shared" if shared else "plain")
    for value in (np.inf, -np.inf, np.nan):
        x = random_values(rng, S.shape[1], float)
        x[[0, 500, 1000]] = value
        with np.errstate(invalid="ignore"):
            expected = S @ x
        got = multiply(device, stored, "row_pattern", x)
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(expected))
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))


SCHEDULED = ("ragged", "sorted and split", "chunks")


@pytest.mark.parametrize("structure", SCHEDULED)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.few(2)
def test_the_same_input_gives_the_same_bits_after_other_products(
    device: Device, format: str, structure: str, rng: np.random.Generator
) -> None:
    S = hurting(device, structure, rng)
    first, second = (store(device, S, format, columns="uint16") for _ in range(2))
    x, other = (random_values(rng, S.shape[1], float) for _ in range(2))
    expected = multiply(device, first, format, x)
    assert_scaled_product(expected, S, x, 1, 0, None)
    for _ in range(20 if device.kind == "cpu" or structure == "sorted and split" else 3):
        got = multiply(device, first, format, other)  # must restore the scratch memory
        assert_scaled_product(got, S, other, 1, 0, None)
        np.testing.assert_array_equal(multiply(device, first, format, x), expected)
    np.testing.assert_array_equal(multiply(device, second, format, x), expected)


@pytest.mark.parametrize("structure", SCHEDULED)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("lanes", [32, 64])
@pytest.mark.few(6)
def test_the_bits_do_not_depend_on_the_order_of_threads(
    lanes: int, format: str, structure: str, rng: np.random.Generator
) -> None:
    device = EmulatedDevice(lanes)
    S = hurting(device, structure, rng)
    stored = store(device, S, format)
    x = random_values(rng, S.shape[1], float)
    expected = multiply(device, stored, format, x)
    for seed in (1, 2):
        np.testing.assert_array_equal(multiply(EmulatedDevice(lanes, seed), stored, format, x), expected)
