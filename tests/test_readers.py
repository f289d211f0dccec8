"""Readers of files: what each kind of file can hold, and that a damaged file is refused without a crash or a hang."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import os
import pickle
import re
import struct
import subprocess
import sys
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gsparse import GpuSparseMatrix
from gsparse.distributed.io.loaders import RowLoader
from gsparse.errors import DeviceMemoryError, FileFormatError
from gsparse.files import SUFFIXES, WRITTEN, read_file, write_file
from tests.seeds import num_examples
from tests.support import STRUCTURES, random_values, with_types

S = sp.csr_array(np.array([[1.0, 0, 2], [0, 3, 0], [4, 0, 5e-300], [0, 0, -6.1]]))


def same(A: Any, B: Any) -> None:
    """Check that two matrices have the same entries, to the last bit."""
    A, B = sp.csr_array(A, copy=True), sp.csr_array(B, copy=True)
    for one in (A, B):
        one.sum_duplicates()
    assert A.shape == B.shape
    for name in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(A, name), getattr(B, name))


# ------------------------------------------------------------------------------------------------------ both ways


@pytest.mark.parametrize("ending", WRITTEN)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_written_matrix_is_read_back_to_the_last_bit(tmp_path: Path, ending: str, structure: str) -> None:
    A = STRUCTURES[structure](np.random.default_rng(5))
    A = (4 * A).astype(np.int64) if ending == ".iua" else A
    path = tmp_path / f"A{ending}"
    if A.nnz == 0 and ending in (".hb", ".rb", ".rua", ".iua"):
        with pytest.raises(FileFormatError, match=r"^A\..* cannot be written: .*with entries"):
            write_file(path, A)
        assert not list(tmp_path.iterdir())
        return
    write_file(path, A)
    same(read_file(path), A)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("ending", "dtype", "right"),
    [(ending, "float64", ".rua") for ending in (*sorted({*SUFFIXES} - {*WRITTEN}), ".iua")]
    + [(".rua", "int64", ".iua"), (".isa", "int32", ".iua")],
)
def test_a_suffix_of_another_type_than_the_matrix_is_refused(
    tmp_path: Path, ending: str, dtype: str, right: str
) -> None:
    A = sp.eye_array(3, dtype=dtype)
    with pytest.raises(
        FileFormatError, match=rf"^A{ending} .* of {dtype} is .* type {right[1:].upper()}: name it {right}$"
    ):
        write_file(tmp_path / f"A{ending}", A)
    assert not list(tmp_path.iterdir())
    write_file(tmp_path / f"A{right}", A)
    assert (tmp_path / f"A{right}").read_text().splitlines()[2].startswith(right[1:].upper())


@pytest.mark.parametrize("ending", [ending for ending in WRITTEN if ending != ".mat"])
def test_a_variable_name_is_refused_for_files_without_names(tmp_path: Path, ending: str) -> None:
    words = rf"^A{ending}: its kind of file holds one matrix, without a name: leave 'B' out$"
    with pytest.raises(FileFormatError, match=words):
        write_file(tmp_path / f"A{ending}", S, "B")
    assert not list(tmp_path.iterdir())
    write_file(tmp_path / f"A{ending}", S.astype(np.int64) if ending == ".iua" else S)
    with pytest.raises(FileFormatError, match=words):
        read_file(tmp_path / f"A{ending}", "B")


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "uint32", "float32", "complex64", "complex128"])
@pytest.mark.parametrize("ending", [".npz", ".mtx", ".mat"])
def test_values_of_every_type_survive(tmp_path: Path, ending: str, dtype: str) -> None:
    rng = np.random.default_rng(7)
    A = with_types(STRUCTURES["even"](rng), dtype, np.int64, rng)
    A.sum_duplicates()
    write_file(tmp_path / f"A{ending}", A)
    result = read_file(tmp_path / f"A{ending}")
    same(result, A)
    assert (result.dtype.kind == "c") == (A.dtype.kind == "c")


def test_a_refused_write_leaves_the_existing_file(tmp_path: Path) -> None:
    for path in (tmp_path / "A.hb", tmp_path / "A.mat"):
        path.write_bytes(b"was there")
    with pytest.raises(FileFormatError, match="real and integer matrices, this is complex128"):
        write_file(tmp_path / "A.hb", S * 1j)
    with pytest.raises(FileFormatError, match="doubles, which do not hold every int64"):
        write_file(tmp_path / "A.mat", sp.csr_array(np.array([[2**60 + 1]])))
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {b"was there"}


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "dia", "bsr"])
@pytest.mark.parametrize("container", ["array", "matrix"])
def test_every_format_of_npz_is_read(tmp_path: Path, kind: str, container: str) -> None:
    matrix = getattr(sp, f"{kind}_{container}")(S)
    for compress in (False, True):
        sp.save_npz(tmp_path / "A.npz", matrix, compressed=compress)
        same(read_file(tmp_path / "A.npz"), S)


@pytest.mark.parametrize("kind", ["csr", "dia"])  # SciPy itself refuses it for COO
def test_values_of_the_other_byte_order_are_read(tmp_path: Path, kind: str) -> None:
    arrays = arrays_of(kind)
    np.savez(tmp_path / "A.npz", **{**arrays, "data": arrays["data"].astype(">f8")})
    A = GpuSparseMatrix.from_file(tmp_path / "A.npz", device="cpu")
    np.testing.assert_array_equal(A @ np.ones(3), S @ np.ones(3))


def test_a_dense_array_is_read_without_its_zeros(tmp_path: Path) -> None:
    scipy.io.mmwrite(tmp_path / "A.mtx", S.toarray())
    scipy.io.savemat(tmp_path / "A.mat", {"A": S.toarray()})
    for name in ("A.mtx", "A.mat"):
        result = read_file(tmp_path / name)
        same(result, S)
        assert result.nnz == S.nnz


# --------------------------------------------------------------------------------------------------------- MATLAB


def test_the_named_variable_is_read_or_else_the_only_sparse_one(tmp_path: Path) -> None:
    path = tmp_path / "A.mat"
    scipy.io.savemat(path, {"text": "words", "b": np.arange(4.0), "S": sp.csc_array(S)})
    same(read_file(path), S)
    assert read_file(path, name="b").toarray().tolist() == [[0, 1, 2, 3]]
    assert GpuSparseMatrix.from_file(path, name="b", device="cpu").shape == (1, 4)
    scipy.io.savemat(path, {"S": sp.csc_array(S), "T": sp.csc_array(2 * S)})
    same(read_file(path, name="T"), 2 * S)


@pytest.mark.parametrize("name", ["_x", "3x", "", "a b", "a.b", "é", "x\n", "x" * 64])
def test_a_name_that_matlab_does_not_accept_is_refused_without_writing_a_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileFormatError, match=r"^A.mat cannot be written: .* is no name of a MATLAB variable"):
        write_file(tmp_path / "A.mat", S, name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["x", "X_3", "x" * 63])
def test_a_name_that_matlab_accepts_is_written(tmp_path: Path, name: str) -> None:
    write_file(tmp_path / "A.mat", S, name)
    same(scipy.io.loadmat(tmp_path / "A.mat", spmatrix=False)[name], S)


def test_a_valid_file_without_the_requested_matrix_is_not_called_malformed(tmp_path: Path) -> None:
    path = tmp_path / "two.mat"
    scipy.io.savemat(path, {"A": sp.csc_array(S), "B": sp.csc_array(S.T), "text": "words"})
    several = r"^two.mat holds several matrices, A \(4×3\), B \(3×4\): choose one with name= \(--name\)$"
    with pytest.raises(FileFormatError, match=several):
        read_file(path)
    with pytest.raises(
        FileFormatError, match=r"^two.mat holds no C: it holds A \(4×3\), B \(3×4\), text \(1×5 char\)$"
    ):
        read_file(path, name="C")
    scipy.io.savemat(path, {"cube": np.zeros((3, 2, 2))})
    with pytest.raises(FileFormatError, match=r"^two.mat holds no matrix: it holds cube \(3×2×2\); write it with"):
        read_file(path)


def test_a_matrix_of_the_suitesparse_collection_is_found_in_its_structure(tmp_path: Path) -> None:
    scipy.io.savemat(tmp_path / "A.mat", {"Problem": {"name": "HB/x", "A": sp.csc_array(S), "id": 3.0}})
    same(read_file(tmp_path / "A.mat"), S)
    same(read_file(tmp_path / "A.mat", name="Problem.A"), S)
    with pytest.raises(
        FileFormatError, match=r"^A.mat holds no Problem.B: the fields of the structure are name, A, id$"
    ):
        read_file(tmp_path / "A.mat", name="Problem.B")
    with pytest.raises(FileFormatError, match=r"^A.mat holds no Problem.A.x: it is in no structure$"):
        read_file(tmp_path / "A.mat", name="Problem.A.x")


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["full", "sparse"])
def test_a_matrix_of_either_byte_order_is_read_beside_an_object_of_matlab(
    tmp_path: Path, order: str, kind: str
) -> None:
    part = partial(element, order=order)

    def numbers(element_type: int, code: str, *values: float) -> bytes:
        return part(element_type, struct.pack(f"{order}{len(values)}{code}", *values))

    def sizes(matlab_class: int, rows: int, columns: int, name: bytes) -> bytes:
        return numbers(6, "I", matlab_class, 2) + numbers(5, "i", rows, columns) + part(1, name)

    if kind == "full":
        matrix = sizes(6, 2, 2, b"A") + numbers(9, "d", 1, 0, 0, 2)
    else:
        matrix = sizes(5, 2, 2, b"A") + numbers(5, "i", 0, 1) + numbers(5, "i", 0, 1, 2) + numbers(9, "d", 1, 2)
    # What MATLAB writes for an object, such as a string or a table, and the nameless variable with its contents.
    text = numbers(6, "I", 17, 0) + part(1, b"text") + part(1, b"MCOS") + part(1, b"string")
    text += part(14, sizes(13, 1, 1, b"") + numbers(6, "I", 7))
    contents = sizes(9, 1, 8, b"") + part(2, bytes(8))
    for variables in ([matrix, text, contents], [text, matrix, contents]):
        (tmp_path / "A.mat").write_bytes(matlab(*((14, body) for body in variables), order=order))
        for name in (None, "A"):
            A = read_file(tmp_path / "A.mat", name)
            assert A.dtype == np.float64
            assert A.toarray().tolist() == [[1, 0], [0, 2]]
        with pytest.raises(FileFormatError, match=r"^A.mat: text is no matrix: it holds .*text \(opaque\)"):
            read_file(tmp_path / "A.mat", "text")


def test_matlab_files_of_other_versions_are_refused_with_the_remedy(tmp_path: Path) -> None:
    scipy.io.savemat(tmp_path / "old.mat", {"A": S.toarray()}, format="4")
    (tmp_path / "new.mat").write_bytes(
        b"MATLAB 7.3 MAT-file".ljust(124) + struct.pack("<H2s", 0x0200, b"IM") + b"\x89HDF"
    )
    for name, version in (("old.mat", "4"), ("new.mat", "7.3")):
        with pytest.raises(FileFormatError, match=f"^{name} cannot be read: .*this one is of {version}.*-v7'"):
            read_file(tmp_path / name)


# ------------------------------------------------------------------------------------------------- Harwell–Boeing


def harwell_boeing(kind: str, matrix: Any) -> str:
    file = io.StringIO()
    scipy.io.hb_write(file, sp.csc_array(matrix))
    return file.getvalue().replace("RUA", kind, 1)


@pytest.mark.parametrize(("kind", "sign"), [("RSA", 1), ("RZA", -1), ("rsa", 1)])
def test_a_symmetry_of_harwell_boeing_is_unfolded(tmp_path: Path, kind: str, sign: int) -> None:
    lower = sp.csr_array(np.tril(np.arange(1.0, 17).reshape(4, 4), 0 if sign > 0 else -1))
    (tmp_path / "A.rsa").write_text(harwell_boeing(kind, lower))
    same(read_file(tmp_path / "A.rsa"), lower + sign * sp.tril(lower, -1).T)


def test_right_hand_sides_of_harwell_boeing_are_left_out(tmp_path: Path) -> None:
    lines = harwell_boeing("RUA", S).splitlines()
    lines[1] += f"{1:14d}"
    lines[3] = lines[3].ljust(72) + "(4E24.16)"
    lines.insert(4, f"F             {1:14d}{0:14d}")
    (tmp_path / "A.rua").write_text("\n".join([*lines, "  1.0  2.0  3.0  4.0"]))
    same(read_file(tmp_path / "A.rua"), S)


def test_fields_of_harwell_boeing_that_touch_are_separated(tmp_path: Path) -> None:
    sections = (
        "A matrix".ljust(80),
        f"{3:14d}" + f"{1:14d}" * 3,
        "RUA".ljust(14) + "".join(f"{n:14d}" for n in (12, 3, 4, 0)),
    )
    numbers = "   1   2   4   5", "  12   1  11   3", "-1.00E+00-2.50E+00 3.00E+00-4.00E+00"
    (tmp_path / "A.rua").write_text("\n".join([*sections, "(4I4)           (4I4)           (4E9.2)", *numbers]))
    rows, columns = [11, 0, 10, 2], [0, 1, 1, 2]
    same(read_file(tmp_path / "A.rua"), sp.csr_array(([-1.0, -2.5, 3.0, -4.0], (rows, columns)), shape=(12, 3)))
    touching = "1000110012", "1000110002"
    (tmp_path / "B.rua").write_text(
        "\n".join(["B".ljust(80), sections[1], "RUA".ljust(14) + "".join(f"{n:14d}" for n in (10002, 1, 2, 0)),
                   "(2I5)           (2I5)           (2E9.2)", "    1    3", touching[1], "-1.00E+00-2.50E+00"])
    )  # fmt: skip
    same(read_file(tmp_path / "B.rua"), sp.csr_array(([-1.0, -2.5], ([10000, 10001], [0, 0])), shape=(10002, 1)))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int64", "uint64"])
def test_numbers_of_harwell_boeing_are_written_where_the_format_says(tmp_path: Path, dtype: str) -> None:
    limits = np.finfo(dtype) if dtype.startswith("f") else np.iinfo(dtype)
    values = np.array([limits.min, limits.min, -limits.max if limits.min else 1, 7] * 3)
    if dtype == "uint64":
        values[0] = 2**63 - 1  # the largest number that is read
    A = sp.csr_array(values.astype(dtype).reshape(2, 6))
    path = tmp_path / ("A.rua" if dtype.startswith("f") else "A.iua")
    write_file(path, A)
    for read in (read_file, partial(scipy.io.hb_read, spmatrix=False), partial(read_harwell_boeing, by_width=True)):
        same(read(path), A)


def with_formats(whole: str, real: str, values: str) -> str:
    """Return a file of the matrix [[2, 0], [0, -3]] with these formats and this text of the values."""
    sizes = (f"{3:14d}" + f"{1:14d}" * 3, "RUA".ljust(14) + "".join(f"{n:14d}" for n in (2, 2, 2, 0)))
    formats = whole.ljust(16) * 2 + real.ljust(20)
    return "\n".join(["A matrix".ljust(80), *sizes, formats, "    1    2    3", "    1    2", values])


FORMATS = {
    "E": ("(3I5)", "(2E15.8)", " 2.00000000E+00-3.00000000E+00"),
    "D": ("(3I5)", "(2D15.8)", " 2.00000000D+00-3.00000000D+00"),
    "lower case": ("(3i5)", "(2d15.8)", " 2.00000000d+00-3.00000000d+00"),
    "a scale": ("(3I5)", "(1P2E15.8)", " 2.00000000E+00-3.00000000E+00"),
    "a scale and a comma": ("(3I5)", "(1P, 2D15.8)", " 2.00000000D+00-3.00000000D+00"),
    "F": ("(3I5)", "(2F15.8)", "     2.00000000    -3.00000000"),
    "F with a scale of 0": ("(3I5)", "(0P2F15.8)", "     2.00000000    -3.00000000"),
    "G": ("(3I5)", "(2G15.8)", "  2.0000000         -0.3D+01   "),
    "an exponent without a letter": ("(3I5)", "(2E15.8)", "    200.0-002  -0.00003+005"),
    "whole numbers": ("(3I5)", "(2I15)", f"{2:15d}{-3:15d}"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_of_fortran_are_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "A.rua").write_text(with_formats(*FORMATS[name]))
    assert read_file(tmp_path / "A.rua").toarray().tolist() == [[2, 0], [0, -3]]


@pytest.mark.parametrize(
    ("format", "values", "words"),
    [
        ("(2Z15)", "", r"its format \(2Z15\) is not supported: it needs one I, E, D, F or G"),
        ("(2(1X,E14.7))", "", r"its format \(2\(1X,E14.7\)\) is not supported: it needs one I, E, D, F or G"),
        ("(1P2F15.8)", "    20.00000000   -30.00000000", "a scale factor, and numbers without an exponent"),
    ],
)
def test_a_format_of_fortran_that_is_not_read_is_named(tmp_path: Path, format: str, values: str, words: str) -> None:
    (tmp_path / "A.rua").write_text(with_formats("(3I5)", format, values))
    with pytest.raises(FileFormatError, match=f"^A.rua cannot be read: .*{words}.*write_file"):
        read_file(tmp_path / "A.rua")


@pytest.mark.parametrize("kind", ["CUA", "PSA", "RUE", "XYZ"])
def test_a_type_of_harwell_boeing_that_is_not_read_is_named(tmp_path: Path, kind: str) -> None:
    (tmp_path / "A.hb").write_text(harwell_boeing(kind, S))
    with pytest.raises(FileFormatError, match=f"^A.hb cannot be read: .*'{kind}'.*readable are .*RUA"):
        read_file(tmp_path / "A.hb")


def written(ending: str, matrix: Any) -> bytes:
    """Return the bytes of a valid file of a kind, written by SciPy alone."""
    file = io.BytesIO()
    if ending == ".npz":
        sp.save_npz(file, matrix, compressed=False)
    elif ending == ".mat":
        full = isinstance(matrix, np.ndarray) or matrix.shape[0] == 3
        scipy.io.savemat(
            file,
            {
                "A": np.asarray(matrix if isinstance(matrix, np.ndarray) else matrix.toarray())
                if full
                else sp.csc_array(matrix)
            },
        )
    elif ending == ".hb":
        return harwell_boeing("RUA", matrix).encode()
    else:
        scipy.io.mmwrite(file, matrix)
    return gzip.compress(file.getvalue()) if ending.endswith(".gz") else file.getvalue()


# ----------------------------------------------------------------------------- files that crashed a reader, or could

MTX = "%%MatrixMarket matrix {}\n{}\n"


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_an_array_without_values_is_an_empty_matrix(tmp_path: Path, shape: tuple[int, int]) -> None:
    # SciPy divides by the number of rows here, and ends with SIGFPE.
    scipy.io.mmwrite(tmp_path / "A.mtx", np.zeros(shape))
    A = GpuSparseMatrix.from_file(tmp_path / "A.mtx", device="cpu")
    assert (A.shape, A.nnz, A.dtype) == (shape, 0, np.dtype(float))


def test_a_last_line_may_lack_its_end(tmp_path: Path) -> None:
    # SciPy follows a null pointer if a letter follows the number, and ends with SIGSEGV.
    for ending in ("2", "2e", "2 words"):
        (tmp_path / "A.mtx").write_text(MTX.format("coordinate real general", f"2 2 2\n1 1 3\n2 2 {ending}")[:-1])
        if ending == "2":
            assert GpuSparseMatrix.from_file(tmp_path / "A.mtx", device="cpu").diagonal().tolist() == [3, 2]
        else:
            with pytest.raises(FileFormatError, match=f"Line 4: it must hold .*, got '2 2 {ending}'"):
                read_file(tmp_path / "A.mtx")


def read_both_ways(path: Path, shape: tuple[int, int]) -> Iterator[Callable[[], Any]]:
    """Yield calls that read a whole file, and the rows of a distributed matrix."""
    yield lambda: read_file(path)
    yield lambda: RowLoader([path], shape).rows(0, shape[0])


# Ends of lines, with blank lines behind them, and the beginnings of lines.
LINE_ENDS = ("\n", "\r\n", " \t\r\n", "\n\n", "\r\n\r\n", "\n \t\n", "\n\r\n", "\r\n  \r\n\t", "\n  ")
VALUES = {
    "real": ("1.5", "-2e-3", "+0.75", "+1.25E+02"),
    "integer": ("3", "-4", "+12"),
    "complex": ("1.5 -2", "+1 +.5e+1"),
    "pattern": ("",),
}


@pytest.mark.parametrize("ending", [".mtx", ".mtx.gz"])
@pytest.mark.parametrize(
    ("field", "layout"), [(field, layout) for field in VALUES for layout in ("coordinate", "array")][:-1]
)
def test_line_ends_blank_lines_and_plus_signs_change_nothing(
    tmp_path: Path, field: str, layout: str, ending: str
) -> None:
    path = tmp_path / f"A{ending}"

    @settings(max_examples=num_examples(20, most_quick=10), suppress_health_check=list(HealthCheck))
    @given(
        st.lists(st.sampled_from(LINE_ENDS), min_size=1, max_size=4), st.sampled_from(("", *LINE_ENDS)), st.booleans()
    )
    def check(ends: list[str], last_end: str, is_long: bool) -> None:
        count = 60_000 if is_long else 7  # in several chunks, or in one
        values = itertools.islice(itertools.cycle(VALUES[field]), count)
        shape, sizes = ((4, 3), f"4 3 {count}") if layout == "coordinate" else ((count, 1), f"{count} 1")
        lines = [f"%%MatrixMarket matrix {layout} {field} general", sizes, *values]
        if layout == "coordinate":
            lines[2:] = [f"{i % 4 + 1} {i % 3 + 1} {value}" for i, value in enumerate(lines[2:])]
        text = "".join(line + end for line, end in zip(lines[:-1], itertools.cycle(ends), strict=False))
        content = (text + lines[-1] + last_end).encode()
        path.write_bytes(gzip.compress(content) if ending == ".mtx.gz" else content)
        # SciPy reads no plus sign before a number.
        exact = sp.csr_array(scipy.io.mmread(io.BytesIO("\n".join([*lines, ""]).replace("+", "").encode())))
        for read in read_both_ways(path, shape):
            same(read(), exact)

    check()


# Numbers that SciPy reads up to the first character that it does not expect, and the kinds of file that hold them.
PARTLY_READ = {
    "real": (
        "1,5",
        "0x1p3",
        "2.5.7",
        "1-5",
        "1e",
        "1e+",
        "1.5 junk",
        "1 2",
        "1 % one",
        "1e5e5",
        "1D5.5",
        "nan(3)",
        "1_0",
        "++3",
        "+ 3",
        "-+3",
    ),
    "complex": ("1 2i", "1,5 2", "1 2 3", "1+2 3"),
    "integer": ("1.5", "7 junk", "7 8", "1e2", "0x7", "1D2"),
    "pattern": ("1.5",),
}


@pytest.mark.parametrize(
    ("field", "number"), [(field, number) for field, numbers in PARTLY_READ.items() for number in numbers]
)
def test_a_number_that_would_be_read_only_partly_is_refused(tmp_path: Path, field: str, number: str) -> None:
    # The wrong line is at the end of a long file, so that it is found behind the first chunk that is read.
    right = {"real": "1.25\n", "complex": "1 2\n", "integer": "3\n", "pattern": "\n"}[field]
    lines = f"1 1 {right}" * 50_000
    path = tmp_path / "A.mtx"
    path.write_text(MTX.format(f"coordinate {field} general", f"2 2 50001\n{lines}2 1 {number}"))
    for read in read_both_ways(path, (2, 2)):
        with pytest.raises(
            FileFormatError, match=r"(Line 50003|entry 50001): it must hold a row, a column and .*, got '2 1"
        ):
            read()
    if field != "pattern":
        path.write_text(MTX.format(f"array {field} general", f"1 1\n{number}"))
        for read in read_both_ways(path, (1, 1)):
            with pytest.raises(FileFormatError, match=r"(Line 3|entry 1): it must hold"):
                read()


def test_an_index_with_a_fraction_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "A.mtx"
    path.write_text(MTX.format("coordinate real general", "2 2 1\n1 1.5 2"))  # SciPy reads 0.5 at (1, 1)
    for read in read_both_ways(path, (2, 2)):
        with pytest.raises(FileFormatError, match=r"'1 1.5 2'"):
            read()


@pytest.mark.parametrize("layout", ["coordinate", "array"])
def test_exponents_of_fortran_are_read(tmp_path: Path, layout: str) -> None:
    values = ["1.0D3", "-2.5d-1", "3.D+02", ".5e1", "7", "-0.125", "NaN", "-inf", "Infinity", "1e400"]
    exact = np.array([1000, -0.25, 300, 5, 7, -0.125, np.nan, -np.inf, np.inf, np.inf])
    is_array = layout == "array"
    lines = [value if is_array else f"{row} 1 {value}" for row, value in enumerate(values, 1)]
    path = tmp_path / "A.mtx"
    text = MTX.format(f"{layout} real general", f"10 1{'' if is_array else ' 10'}\n" + "\r\n\n  ".join(lines))
    path.write_text(text.replace("\n", "\n% Do not Delete\n", 1))
    for read in read_both_ways(path, (10, 1)):
        np.testing.assert_array_equal(read().toarray()[:, 0], exact)
    path.write_text(MTX.format("coordinate complex hermitian", "2 2 1\n2 1 1D1 2d-1"))
    for read in read_both_ways(path, (2, 2)):
        assert read().toarray().tolist() == [[0, 10 - 0.2j], [10 + 0.2j, 0]]


def assert_refused_with_little_memory(path: Path, shape: tuple[int, int], message: str, most: int) -> None:
    """Assert that each way of reading refuses the file with this message, and takes less than `most` bytes."""
    for read in read_both_ways(path, shape):
        tracemalloc.start()
        try:
            with pytest.raises(FileFormatError, match=message):
                read()
            assert tracemalloc.get_traced_memory()[1] < most
        finally:
            tracemalloc.stop()


def test_lines_of_a_header_may_begin_with_blanks(tmp_path: Path) -> None:
    lines = ["  %%MatrixMarket matrix coordinate real general", " \t% written by MUMPS", "", "   2 2 1", "  2 1 7.5"]
    (tmp_path / "A.mtx").write_text("\n".join(lines))
    for read in read_both_ways(tmp_path / "A.mtx", (2, 2)):
        assert read().toarray().tolist() == [[0, 0], [7.5, 0]]


def test_blank_lines_that_compression_hides_are_refused_soon(tmp_path: Path) -> None:
    path, blank = tmp_path / "A.mtx.bz2", bz2.compress(b"\n" * 45_000_000)
    path.write_bytes(bz2.compress(MTX.format("coordinate real general", "2 2 1\n1 1 1.0").encode()) + 20 * blank)
    assert path.stat().st_size < 1600
    start = time.perf_counter()
    assert_refused_with_little_memory(path, (2, 2), "its text is longer than .* take blanks out", 64 << 20)
    assert time.perf_counter() - start < 10  # It took 8 s each way until the whole text was read.


@pytest.mark.parametrize("ending", [".mtx.gz", ".mtx.bz2"])
def test_a_header_of_comments_takes_little_memory(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"A{ending}"
    with (gzip.open if ending == ".mtx.gz" else bz2.open)(path, "wb") as file:
        file.write(b"%%MatrixMarket matrix coordinate real general\n")
        for _ in range(40):
            file.write((b"%" * 99 + b"\n") * 10_000)
        file.write(b"2 2 1\n1 1 1.0\n")
    message = "its header is longer than 1,048,576 bytes: take comments out"
    assert_refused_with_little_memory(path, (2, 2), message, 16 << 20)


def test_a_line_without_end_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "A.mtx.gz"
    with gzip.open(path, "wb") as file:
        file.write(MTX.format("array real general", "2 1\n").encode())
        for _ in range(40):
            file.write(b"1" * (1 << 20))
    assert_refused_with_little_memory(path, (2, 1), "it has a line of more than 65,536 bytes", 32 << 20)


TRAPS: dict[str, tuple[str, str]] = {
    "values behind an array without rows": (MTX.format("array real general", "0 3\n1.0"), "has no values"),
    "a symmetric array that is not square": (
        MTX.format("array real symmetric", "2 3\n1\n2\n3"),
        r"symmetric.*\(2, 3\) is not square",
    ),
    "a petabyte of entries": (
        MTX.format("coordinate real general", "2 3 1000000000000000\n1 3 4"),
        "too short for more than",
    ),
    "a petabyte of rows": (
        MTX.format("coordinate real general", "9000000000000000 3 1\n1 3 4"),
        "leave empty rows out",
    ),
    "a terabyte of values": (MTX.format("array real general", "1000000 1000000\n1"), "too short for more than"),
    "an array of a pattern": (MTX.format("array pattern general", "1 1\n1"), "pattern"),
    "null bytes": (MTX.format("coordinate real general", "2 2 2\n1 1 3\0\0\0\n2 2 1"), "null bytes"),
}


def test_a_vector_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "b.mtx").write_text("%%MatrixMarket vector coordinate real general\n5 1\n1 3.0\n")
    with pytest.raises(FileFormatError, match=r"^b\.mtx cannot be read: it holds a vector.*scipy\.io\.mmwrite"):
        read_file(tmp_path / "b.mtx")


@pytest.mark.parametrize("name", TRAPS)
def test_a_wrong_header_is_refused_before_it_is_followed(tmp_path: Path, name: str) -> None:
    content, words = TRAPS[name]
    (tmp_path / "A.mtx").write_text(content)
    (tmp_path / "A.mtx.gz").write_bytes(gzip.compress(content.encode()))
    for file in ("A.mtx", "A.mtx.gz"):
        with pytest.raises(FileFormatError, match=f"^{file} is truncated or malformed: .*{words}.*scipy.io.mmwrite"):
            GpuSparseMatrix.from_file(tmp_path / file, device="cpu")


def arrays_of(kind: str) -> dict[str, Any]:
    """Return the arrays that `save_npz` writes."""
    file = io.BytesIO()
    sp.save_npz(file, S.asformat(kind))
    file.seek(0)
    with np.load(file) as archive:
        return dict(archive)


@pytest.mark.parametrize("kind", ["csr", "csc", "bsr"])
@pytest.mark.parametrize("shift", [10**6, -2])
def test_indices_out_of_range_are_refused_before_they_are_followed(tmp_path: Path, kind: str, shift: int) -> None:
    # SciPy's conversions from CSC and BSR write through these indices, and end with SIGSEGV.
    arrays = arrays_of(kind)
    np.savez(tmp_path / "A.npz", **{**arrays, "indices": arrays["indices"] + np.int32(shift)})
    with pytest.raises(FileFormatError, match=r"^A.npz .*ind.*scipy.sparse.save_npz"):
        GpuSparseMatrix.from_file(tmp_path / "A.npz", device="cpu")


@pytest.mark.parametrize("kind", ["csr", "csc", "bsr"])
def test_pointers_that_fall_to_zero_are_refused(tmp_path: Path, kind: str) -> None:
    # SciPy's own check accepts these pointers; its conversions then follow them, and end with SIGSEGV.
    arrays = arrays_of(kind)
    arrays["indptr"][-1] = 0
    np.savez(tmp_path / "A.npz", **arrays)
    with pytest.raises(FileFormatError, match=r"^A.npz .*non-decreasing"):
        GpuSparseMatrix.from_file(tmp_path / "A.npz", device="cpu")


@pytest.mark.parametrize("diagonals", [1000, 10_000])
def test_diagonals_that_are_nearly_empty_are_refused(
    tmp_path: Path, diagonals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, n = tmp_path / "A.npz", 2**24
    arrays = {"format": b"dia", "shape": [n, n], "data": np.ones((diagonals, 1)), "offsets": np.arange(diagonals)}
    np.savez_compressed(path, **arrays)
    assert path.stat().st_size < 32_000
    # SciPy's conversion would visit 1.7e10 places or more, and take minutes.
    monkeypatch.setattr(sp.dia_array, "tocsr", lambda *_, **__: pytest.fail("the file was trusted"))
    for read in read_both_ways(path, (n, n)):
        with pytest.raises(FileFormatError, match=rf"{n:,} rows and {diagonals:,} diagonals, .* to COO or CSR before"):
            read()


def test_a_long_matrix_of_constant_diagonals_is_read(tmp_path: Path) -> None:
    n = 10**6
    exact = sp.diags_array(np.ones((3, 1)), offsets=[-1, 0, 1], shape=(n, n), format="dia")
    sp.save_npz(tmp_path / "A.npz", exact)
    assert (tmp_path / "A.npz").stat().st_size < n / 10  # less than a byte for each row
    result = read_file(tmp_path / "A.npz")
    assert (result.shape, result.nnz) == (exact.shape, 3 * n - 2)


def npy(shape: tuple[int, ...], descr: str, body: bytes) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"shape": shape, "fortran_order": False, "descr": descr})
    return file.getvalue() + body


def test_an_array_that_is_shorter_than_its_header_says_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "A.npz", "w") as archive:
        archive.writestr("data.npy", npy((10**12,), "<f8", b"\0" * 80))
    with pytest.raises(FileFormatError, match=r"data.npy is 208 bytes long, its header makes it 8,000,000,000,128"):
        read_file(tmp_path / "A.npz")


def zipped(compression: int = zipfile.ZIP_DEFLATED, **members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def with_size(content: bytes, size: int) -> bytes:
    """Change the size that the directory of an archive states for its only member."""
    place = content.rindex(b"PK\1\2") + 24
    return content[:place] + struct.pack("<I", size) + content[place + 4 :]


def matlab(*elements: tuple[int, bytes], order: str = "<") -> bytes:
    mark = b"IM" if order == "<" else b"MI"
    head = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack(f"{order}H", 0x0100) + mark
    return head + b"".join(struct.pack(f"{order}II", kind, len(body)) + body for kind, body in elements)


def element(kind: int, body: bytes, order: str = "<") -> bytes:
    return struct.pack(f"{order}II", kind, len(body)) + body.ljust(-(-len(body) // 8) * 8, b"\0")


FLAGS = element(6, struct.pack("<II", 5, 0))
RUA = harwell_boeing("RUA", S)
IUA = harwell_boeing("IUA", np.array([[3, 0], [1, 4]]))

MALFORMED: dict[str, tuple[str, bytes, str]] = {
    "a member of a kind NumPy does not write": (
        ".npz", zipped(zipfile.ZIP_BZIP2, data=npy((1,), "<f8", bytes(8))), "compressed in a way that NumPy does not"),
    "a member that cannot be so large": (
        ".npz", with_size(zipped(data=npy((1,), "<f8", bytes(8))), 2**31), "cannot hold 2,147,483,648 bytes in"),
    "a member of an unknown version": (".npz", zipped(data=b"\x93NUMPY\x09\x00" + bytes(80)), "of version .*9, 0"),
    "rows beyond the file": (
        ".npz", zipped(format=npy((), "|S3", b"dia"), shape=npy((2,), "<i8", struct.pack("<qq", 10**15, 3))),
        "leave empty rows out"),
    "a variable that is none": (".mat", matlab((9, bytes(8))), "a variable is of type 9, not 14"),
    "an element beyond its variable": (
        ".mat", matlab((14, FLAGS + struct.pack("<II", 5, 4000))), "says that it has 4,000 bytes, 0 are left"),
    "a variable beyond the file": (
        ".mat", matlab((14, FLAGS))[:-8], "says that it has 16 bytes, 8 are left"),
    "an element of an unknown type": (".mat", matlab((14, FLAGS + element(8, b""))), "an element .* type 8, but"),
    "a variable within numbers": (".mat", matlab((14, FLAGS + element(14, b""))), "an element .* type 14, but"),
    "the same, big-endian": (".mat", matlab((9, bytes(8)), order=">"), "a variable is of type 9, not 14"),
    "the same, compressed": (
        ".mat", matlab((15, zlib.compress(element(9, bytes(8))))), "a variable is of type 9, not 14"),
    "three lines": (".hb", "\n".join(RUA.splitlines()[:3]).encode(), "header has four lines, it has 3"),
    "a count of lines that is wrong": (
        ".hb", RUA.replace(f"{4:14d}{1:14d}", f"{4:14d}{2:14d}", 1).encode(), "it announces 2"),
    "a line that is too long": (".hb", RUA.replace(" 1 3", " 1 3" + " 3" * 40, 1).encode(), "is longer than"),
    "fewer entries than announced": (
        ".hb", RUA.replace("1.0000000000000000E+00", " " * 22).encode(), "must hold numbers of .3E25.16., not ' {25}"),
    "a sign without digits": (".hb", IUA.replace(" 4\n", " -\n").encode(), "line 5 must hold .* -"),
    "a whole number beyond int64": (
        ".hb", IUA.replace("(26I3)", "(3I20)").replace("  3  1  4", f"{3:20d}{1:20d}{2**63:20d}").encode(),
        f"must hold numbers of .3I20., not .*{2**63}"),
    "a field of two numbers": (
        ".hb", IUA.replace("(26I3)", "(3I4)").replace("  3  1  4", " 3 11 4   1").encode(), "must hold .* 3 11 4"),
    "a symmetric rectangle": (".rsa", harwell_boeing("RSA", S).encode(), r"symmetric, .* \(4, 3\) is not square"),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_the_error_says_what_is_wrong_with_a_file(tmp_path: Path, name: str) -> None:
    ending, content, words = MALFORMED[name]
    (tmp_path / f"A{ending}").write_bytes(content)
    with pytest.raises(FileFormatError, match=f"(?s)^A{ending} is truncated or malformed: .*{words}.*Fetch it again"):
        GpuSparseMatrix.from_file(tmp_path / f"A{ending}", device="cpu")


@pytest.mark.parametrize("repeat", [4_000_000, 10**15])
def test_a_harwell_boeing_format_takes_no_more_memory_than_the_file(tmp_path: Path, repeat: int) -> None:
    (tmp_path / "A.rua").write_text(RUA.replace("(40I2)", f"({repeat}I99)"))
    tracemalloc.start()
    try:
        same(read_file(tmp_path / "A.rua"), S)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def full_matrix(num_bytes: int) -> bytes:
    """Return a 2 by 2 variable whose header says that its numbers take `num_bytes` bytes."""
    head = element(6, struct.pack("<II", 6, 0)) + element(5, struct.pack("<ii", 2, 2)) + element(1, b"A")
    return element(14, head + struct.pack("<II", 9, num_bytes) + bytes(num_bytes))


# The contents of a compressed variable, made only when needed because they are large, and the expected message.
INFLATED: dict[str, tuple[Callable[[], bytes], str]] = {
    "null bytes": (lambda: bytes(10**8), "a variable is of type 0, not 14"),
    "null bytes behind a matrix": (lambda: full_matrix(32) + bytes(10**8), "has bytes behind its end"),
    "more numbers than the shape": (lambda: full_matrix(10**8), r"shape \(2, 2\) says that it has 100,000,000 bytes"),
    "numbers that are not there": (lambda: full_matrix(32)[:-8], "it ends 8 bytes before the end"),
}


@pytest.mark.parametrize("name", INFLATED)
@pytest.mark.few(1)
def test_a_compressed_variable_is_refused_before_it_is_expanded(tmp_path: Path, name: str) -> None:
    make, words = INFLATED[name]
    (tmp_path / "A.mat").write_bytes(matlab((15, zlib.compress(make()))))
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError, match=f"^A.mat is truncated or malformed: .*{words}.*Fetch it again"):
            read_file(tmp_path / "A.mat")
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes on this system")
@pytest.mark.parametrize("ending", SUFFIXES)
@pytest.mark.timeout(120)
def test_pipes_and_devices_are_refused_before_they_are_opened(tmp_path: Path, ending: str) -> None:
    os.mkfifo(tmp_path / f"pipe{ending}")
    (tmp_path / f"zero{ending}").symlink_to("/dev/zero")
    for name in (f"pipe{ending}", f"zero{ending}"):
        words = f"^{name} must be a regular file, and is a pipe or a device: write its contents to a file first$"
        with pytest.raises(FileFormatError, match=words):
            read_file(tmp_path / name)
        if ending.startswith((".npz", ".mtx")):
            with pytest.raises(FileFormatError, match=words):
                RowLoader([tmp_path / name], (3, 3))


@pytest.mark.parametrize("values", [np.array(["a", "b"]), np.zeros(2, np.float16), np.zeros(2, "datetime64[s]")])
def test_values_of_unsupported_types_are_refused(tmp_path: Path, values: Any) -> None:
    np.savez(tmp_path / "A.npz", format=b"coo", shape=(2, 2), row=[0, 1], col=[0, 1], data=values)
    with pytest.raises(FileFormatError, match=r"^A.npz is truncated or malformed: .*(dtype|support|numbers)"):
        read_file(tmp_path / "A.npz")


@pytest.mark.parametrize("name", ["A.txt", "A", "A.gz"])
def test_a_kind_of_file_that_is_not_read_is_refused_with_those_that_are(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(written(".mtx", S))
    with pytest.raises(FileFormatError, match=f"^{name}: unknown kind of file, gsparse reads .npz, .mtx, .mtx.gz"):
        read_file(tmp_path / name)


@pytest.mark.parametrize("ending", SUFFIXES)
def test_a_missing_file_is_named_and_an_empty_one_refused(tmp_path: Path, ending: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"no file at .*A{ending}"):
        read_file(tmp_path / f"A{ending}")
    (tmp_path / f"A{ending}").touch()
    with pytest.raises(FileFormatError, match=f"^A{ending} (is truncated or malformed|cannot be read): "):
        read_file(tmp_path / f"A{ending}")


def test_an_error_of_the_operating_system_is_passed_on(tmp_path: Path) -> None:
    (tmp_path / "A.npz").mkdir()
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path / "A.npz")


def test_running_out_of_memory_is_an_error_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise MemoryError("Unable to allocate 1 TiB")

    sp.save_npz(tmp_path / "A.npz", S)
    monkeypatch.setattr(sp, "load_npz", full)
    with pytest.raises(DeviceMemoryError, match=r"A.npz does not fit.*1 TiB.*from_loaders"):
        read_file(tmp_path / "A.npz")


# --------------------------------------------------------------------------------------------------------- fuzzing

# Files of each kind; a longer run: GSPARSE_FUZZ_EXAMPLES=100000.
EXAMPLES = num_examples(150, most_quick=40)

# Limits for reading a file of a few hundred bytes: seconds, and bytes beyond those of the interpreter.
SECONDS, BYTES = 120, 3 << 30

# Program of the process that reads each file, so that the test survives a crash, a hang or a huge allocation.
CHILD = f"""
import pickle, resource, struct, sys, warnings
from pathlib import Path
import numpy as np, scipy.io, scipy.sparse as sp
from gsparse.errors import FileFormatError
from gsparse.files import read_file
warnings.simplefilter("ignore")
own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (own + {BYTES},) * 2)
while head := sys.stdin.buffer.read(8):
    path = Path(sys.stdin.buffer.read(struct.unpack("q", head)[0]).decode())
    try:
        A = read_file(path)
        A.check_format(full_check=True)
        answer = ("matrix", (A.shape, A.data, A.indices, A.indptr))
        if A.indptr.nbytes > 1 << 20:
            answer = ("matrix", None)
    except FileFormatError as error:
        answer = ("refused", str(error))
    except BaseException as error:
        answer = ("wrong", repr(error))
    reply = pickle.dumps(answer)
    sys.stdout.buffer.write(struct.pack("q", len(reply)) + reply)
    sys.stdout.buffer.flush()
"""


class Reader:
    """A process that reads files, and is started again after it died."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.process = folder, self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        # Files are read one after another, so that a crash belongs to the current one.
        return subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, ending: str, content: bytes) -> tuple[str, Any]:
        path = self.folder / f"A{ending}"
        path.write_bytes(content)
        assert self.process.stdin and self.process.stdout
        name = str(path).encode()
        timer = Timer(SECONDS, self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(struct.pack("q", len(name)) + name)
            self.process.stdin.flush()
            head = self.process.stdout.read(8)
            if len(head) == 8:
                return pickle.loads(self.process.stdout.read(*struct.unpack("q", head)))  # type: ignore[no-any-return]
        finally:
            timer.cancel()
        self.close()
        exit_code, self.process = self.process.returncode, self._start()
        return "died", f"signal {-exit_code} (9 after a time limit of {SECONDS} s)"

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(SECONDS)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    if not sys.platform.startswith("linux"):
        pytest.skip("memory is limited with Linux's setrlimit")
    process = Reader(tmp_path_factory.mktemp("fuzz"))
    yield process
    process.close()


def read_harwell_boeing(path: Path, by_width: bool = False) -> Any:
    """Read the sections by the counts of lines in the header, and their numbers by the width of the format.

    Unless `by_width`, a line with the right number of words is read from blank to blank, as SciPy's files need it.
    """
    lines = path.read_text("latin-1").splitlines()
    begins = 4 + np.cumsum([0, *(int(lines[1][14 * k : 14 * k + 14]) for k in (1, 2, 3))])
    sizes = int(lines[2][28:42]) + 1, *[int(lines[2][42:56])] * 2
    words: list[list[str]] = []
    formats = re.findall(r"\([^()IEFDG]*?(\d*)[IEFDG](\d+)[^()]*\)", lines[3], re.IGNORECASE)
    for (begin, end), size, format in zip(itertools.pairwise(begins), sizes, formats, strict=False):
        repeat, width = int(format[0] or 1), int(format[1])
        words.append([])
        for k, line in enumerate(lines[begin:end]):
            fields = [line[j : j + width] for j in range(0, len(line.rstrip()), width)]
            is_full = len(line.split()) == min(repeat, size - k * repeat)
            words[-1] += line.split() if is_full and not by_width else fields
    pointers, rows = (np.array(part, int) - 1 for part in words[:2])
    shape = int(lines[2][14:28]), int(lines[2][28:42])
    matrix = sp.csc_array((np.array(words[2], float), rows, pointers), shape=shape)
    sign = {"S": 1, "Z": -1}.get(lines[2][1].upper())
    return matrix if sign is None else matrix + sign * (matrix - sp.diags_array(matrix.diagonal())).T


def read_matrix_market(content: bytes) -> Any:
    """Read with SciPy, which knows neither an exponent with a D nor a plus sign before a number."""
    content = re.sub(rb"(?<![eEdD])\+(?=[0-9.])", b"", content)
    return scipy.io.mmread(io.BytesIO(re.sub(rb"(?<=[0-9.])[dD](?=[0-9+-])", b"E", content) + b"\n"))


# Reads by SciPy or NumPy alone; only files that our reader has accepted, and so proved safe, are read with these.
ORACLES: dict[str, Callable[[Path], Any]] = {
    ".npz": sp.load_npz,
    ".mat": lambda path: scipy.io.loadmat(path, spmatrix=False)[scipy.io.whosmat(path)[0][0]],
    ".hb": read_harwell_boeing,
    ".mtx": lambda path: read_matrix_market(path.read_bytes()),
    ".mtx.gz": lambda path: read_matrix_market(gzip.decompress(path.read_bytes())),
}

WORDS = ("array", "coordinate", "pattern", "complex", "integer", "symmetric", "skew-symmetric", "hermitian", "vector")
NUMBERS = (0, 1, 2, 3, 5, -1, 7, 2**31 - 1, 2**31, 2**32, 2**40, 2**63 - 1, 2**63, 10**30)
number = st.sampled_from(NUMBERS) | st.integers(-9, 99)


@st.composite
def with_bytes_changed(draw: Any, content: bytes) -> bytes:
    """Flip bits, overwrite, cut out or repeat bytes, or truncate."""
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(changed) - 1, 0)))
        how = draw(st.sampled_from(["flip", "flip", "number", "cut", "repeat", "truncate"]))
        if how == "flip" and changed:
            changed[place] ^= 1 << draw(st.integers(0, 7))
        elif how == "number":
            changed[place : place + 4] = draw(st.sampled_from(NUMBERS[:9])).to_bytes(8, "little", signed=True)[:4]
        elif how == "cut":
            del changed[place : place + draw(st.integers(1, 40))]
        elif how == "repeat":
            changed[place:place] = changed[place : place + draw(st.integers(1, 40))]
        elif how == "truncate":
            del changed[place:]
    return bytes(changed)


@st.composite
def with_words_changed(draw: Any, content: bytes) -> bytes:
    """Replace words and numbers of a text, mostly of its header."""
    lines = content.decode("latin-1").split("\n")
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, min(len(lines) - 1, draw(st.sampled_from([4, 4, 99])))))
        words = lines[place].split(" ")
        word = draw(st.integers(0, len(words) - 1))
        new = str(draw(number)) if draw(st.booleans()) else draw(st.sampled_from(WORDS))
        words[word] = new.rjust(len(words[word]))
        lines[place] = " ".join(words)
    return "\n".join(lines).encode("latin-1")


@st.composite
def with_arrays_changed(draw: Any) -> bytes:
    """Write an archive with correct checksums, but wrong arrays or wrong headers."""
    arrays = arrays_of(draw(st.sampled_from(["csr", "csc", "bsr", "coo", "dia"])))
    lie = None
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(sorted(arrays)))
        how = draw(st.sampled_from(["element", "element", "type", "length", "lie", "drop", "format"]))
        array = np.array(arrays[name])
        if how == "element" and array.size and array.dtype.kind in "if":
            array.flat[draw(st.integers(0, array.size - 1))] = draw(st.sampled_from(NUMBERS[:8]))
        elif how == "type" and array.dtype.kind in "if":
            array = array.astype(draw(st.sampled_from(["i1", "i8", ">i4", "u8", "f8", "f2", "c8", "U5", "?"])))
        elif how == "length":
            array = np.resize(array, draw(st.sampled_from([(), (0,), (1,), (7,), (2, 3), (1, 2, 3)])))
        elif how == "lie":
            lie = name, draw(st.lists(number.filter(lambda n: n >= 0), max_size=3))
        elif how == "format":
            array = np.array(draw(st.sampled_from([b"csr", b"csc", b"bsr", b"dia", b"coo", b"lil", b"random"])))
            name = "format"
        arrays[name] = array
        if how == "drop":
            del arrays[name]
            break
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))) as archive:
        for name, array in arrays.items():
            shape = tuple(lie[1]) if lie and lie[0] == name else array.shape
            archive.writestr(f"{name}.npy", npy(shape, array.dtype.str, array.tobytes()))
    return file.getvalue()


@st.composite
def damaged(draw: Any, ending: str) -> bytes:
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    shape = draw(st.sampled_from([(4, 3), (3, 3), (1, 5), (6, 1)]))
    A = sp.random_array(shape, density=0.5, format="csr", rng=rng)
    A[0, 0] = 1.5
    if draw(st.booleans()):
        A.data = random_values(rng, A.nnz, draw(st.sampled_from(["int64"] + ["complex128"] * (ending != ".hb"))))
        A.data[0] = 3
    content = written(ending, A)
    if ending == ".npz" and draw(st.integers(0, 3)):
        return draw(with_arrays_changed())
    if ending in (".mtx", ".hb") and draw(st.booleans()):
        return draw(with_words_changed(content))
    if ending == ".mtx.gz" and draw(st.booleans()):
        return gzip.compress(draw(with_words_changed(written(".mtx", A))))
    if ending == ".mat" and draw(st.booleans()):
        body = zlib.compress(draw(with_bytes_changed(content[128:])))
        return content[:128] + struct.pack("<II", 15, len(body)) + body
    return draw(with_bytes_changed(content))


@pytest.mark.parametrize("ending", ORACLES)
@pytest.mark.filterwarnings("ignore")  # SciPy and NumPy warn about errors in the files
def test_a_damaged_file_is_refused_or_read_as_scipy_reads_it(reader: Reader, ending: str) -> None:
    totals = {"matrix": 0, "refused": 0}

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(damaged(ending))
    def check(content: bytes) -> None:
        outcome, result = reader(ending, content)
        assert outcome in totals, f"{result}: {content!r}"
        totals[outcome] += 1
        if outcome == "refused":
            wrong, remedy = "is truncated or malformed: ", "Fetch it again, or write it"
            if ending == ".mat" and "holds no matrix" in result:  # valid, but empty, or with text only
                wrong, remedy = "holds no matrix: it holds ", "write it"
            if ending == ".npz" and "does not contain a sparse matrix" in result:  # a valid archive of other arrays
                wrong, remedy = "does not contain a sparse matrix: it holds ", "write it"
            if " cannot be read: " in result:  # the header of a kind of file that is not read
                wrong, remedy = "cannot be read: ", " writes files that can"
            assert result.startswith(f"A{ending} {wrong}") and remedy in result
        elif result is not None:
            exact = ORACLES[ending](reader.folder / f"A{ending}")
            if ending == ".npz":
                exact.data = exact.data.astype(exact.dtype.newbyteorder("="))
            shape, data, indices, indptr = result
            same(sp.csr_array((data, indices, indptr), shape=shape), exact)

    check()
    assert totals["refused"] > EXAMPLES // 10
