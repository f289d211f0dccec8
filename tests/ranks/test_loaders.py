"""Rows loaded from files and callables equal those that SciPy reads, or raise an error that names the cause."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import pickle
import tempfile
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from gsparse import GpuSparseMatrix
from gsparse.distributed.io import readers
from gsparse.distributed.io.loaders import RowLoader
from gsparse.errors import FileFormatError, ShapeError, StructureError
from tests.seeds import num_examples
from tests.support import STRUCTURES, random_values

FIELDS = {"real": "float64", "double": "float64", "integer": "int64", "complex": "complex128", "pattern": None}
SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")


def load_rows(source: Any, lo: int, hi: int, shape: tuple[int, int]) -> sp.csr_array:
    return RowLoader([source], shape).rows(lo, hi)


def assert_same(result: sp.csr_array, expected: Any) -> None:
    expected = sp.csr_array(expected)
    assert isinstance(result, sp.csr_array)
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result.indptr, expected.indptr)
    np.testing.assert_array_equal(result.indices, expected.indices)
    np.testing.assert_array_equal(result.data, expected.data)


# --------------------------------------------------------------- Matrix Market


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Draw a Matrix Market file: any layout, field and symmetry, odd spacing, entries in any order and repeated."""
    layout = draw(st.sampled_from(["coordinate", "array"]))
    field = draw(st.sampled_from([name for name in FIELDS if layout == "coordinate" or name != "pattern"]))
    symmetry = draw(st.sampled_from(SYMMETRIES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    # SciPy's own reader divides by zero if an array has no rows.
    M, N = draw(st.integers(layout == "array", 7)), draw(st.integers(0, 7))
    if symmetry != "general":
        N = M
    if layout == "array":
        count = {"general": M * N, "skew-symmetric": M * (M - 1) // 2}.get(symmetry, M * (M + 1) // 2)
    else:
        count = draw(st.integers(0, 12)) if M and N else 0
    values: Any = [()] * count
    if field == "complex":
        values = [(z.real, z.imag) for z in random_values(rng, count, "complex128")]
    elif field != "pattern":
        values = [(v,) for v in random_values(rng, count, FIELDS[field])]
    places: Any = [()] * count
    if layout == "coordinate":
        places = np.stack([rng.integers(1, max(M, 1) + 1, count), rng.integers(1, max(N, 1) + 1, count)], axis=1)
        if symmetry != "general":
            places = np.sort(places, axis=1)[:, ::-1]
    newline = draw(st.sampled_from(["\n", "\n", "\n\n", "\r\n", "\n \t\n"]))
    sizes = (M, N, count) if layout == "coordinate" else (M, N)
    lines = [" ".join(map(str, (*place, *value))) for place, value in zip(places, values, strict=True)]
    head = [f"%%MatrixMarket matrix {layout} {field} {symmetry}", "% a comment", " ".join(map(str, sizes))]
    return "\n".join(head) + "\n" + newline.join(lines) + draw(st.sampled_from(["", newline]))


@settings(max_examples=num_examples(150), deadline=None)
@given(texts(), st.data())
def test_rows_of_matrix_market_are_those_of_scipys_reader(text: str, data: st.DataObject) -> None:
    whole = sp.csr_array(scipy.io.mmread(io.StringIO(text), spmatrix=False))
    lo = data.draw(st.integers(0, whole.shape[0]))
    hi = data.draw(st.integers(lo, whole.shape[0]))
    kind = data.draw(st.sampled_from([".mtx", ".mtx.gz", ".mtx.bz2", ".MTX"]))
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(readers, "_CHUNK", data.draw(st.sampled_from([1, 30, 1 << 20])))
        path = Path(folder) / f"matrix{kind}"
        compress = {".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)
        path.write_bytes(compress(text.encode()))
        assert_same(load_rows(path, lo, hi, whole.shape), whole[lo:hi])
        assert RowLoader([path], whole.shape).row_lengths(lo, hi) is None


@pytest.mark.parametrize("sizes", ["0 2", "2 0", "0 0"])
def test_dense_files_without_entries_are_read(tmp_path: Path, sizes: str) -> None:
    path = tmp_path / "empty.mtx"
    path.write_text(f"%%MatrixMarket matrix array integer general\n{sizes}\n")
    M, N = map(int, sizes.split())
    assert_same(load_rows(path, 0, M, (M, N)), sp.csr_array((M, N), dtype=np.int64))


def test_matrix_market_needs_memory_only_for_the_requested_rows(tmp_path: Path, monkeypatch: Any) -> None:
    n = 60_000
    path = tmp_path / "diagonal.mtx"
    scipy.io.mmwrite(path, sp.diags_array(np.arange(1.0, n + 1)))
    monkeypatch.setattr(readers, "_CHUNK", 1 << 15)
    tracemalloc.start()
    result = load_rows(path, n - 10, n, (n, n))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.data.tolist() == list(range(n - 9, n + 1))
    assert peak < path.stat().st_size / 2


BANNER = "%%MatrixMarket matrix coordinate real general\n"
MALFORMED_TEXTS = {
    "": "banner",
    "2 2 1\n1 1 1\n": "banner",
    BANNER: "malformed",
    BANNER + "2 2\n": "malformed",
    BANNER + "2 x 1\n1 1 1\n": "malformed",
    BANNER + "2 2 2\n1 1 1\n": "1 entries of 2",
    BANNER + "2 2 1\n1 1 1\n2 2 1\n": "more than the 1",
    BANNER + "2 2 1\n3 1 1\n": "out of bounds",
    BANNER + "2 2 1\n1 0 1\n": "out of bounds",
    BANNER + "2 2 1\n1 1\n": "malformed",
    BANNER + "2 2 1\n1 1 one\n": "malformed: entry 1: ",
    BANNER + "2 2 3\n1 1 1\n% late\n2 2 1\n": "malformed: entry 2: it must",
    BANNER.replace("real", "integer") + "2 2 1\n1 1 99999999999999999999\n": "range",
    BANNER.replace("matrix", "vector") + "2 1\n1 1\n": "no matrix",
    BANNER.replace("general", "symmetric") + "2 3 1\n1 1 1\n": r"shape \(2, 3\)",
    BANNER.replace("coordinate real", "array pattern") + "2 2\n1\n": "pattern",
    BANNER.replace("coordinate", "array") + "2 2\n1\n1\n1\n": "expected another 1 lines",
}


@pytest.mark.parametrize(("text", "why"), MALFORMED_TEXTS.items())
def test_malformed_text_is_an_error(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "bad.mtx"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=rf"(?i)bad.mtx.* .*{why}"):
        load_rows(path, 0, 2, (2, 2))


# ------------------------------------------------------------------------- npz


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_rows_of_npz_match_scipys_reader(tmp_path: Path, structure: str, compressed: bool) -> None:
    S = STRUCTURES[structure](np.random.default_rng(0))
    path = tmp_path / "S.npz"
    sp.save_npz(path, S, compressed=compressed)
    M, sources = S.shape[0], RowLoader([path], S.shape)
    for lo, hi in {(0, M), (0, 0), (M, M), (M // 3, M // 2), (M // 2, M), (max(M - 1, 0), M)}:
        assert_same(sources.rows(lo, hi), S[lo:hi])
        np.testing.assert_array_equal(sources.row_lengths(lo, hi), np.diff(S.indptr[lo : hi + 1]))


@pytest.mark.parametrize("dtype", ["float32", "complex64", "int8", "bool", "uint64"])
@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "bsr", "dia"])
def test_npz_of_any_layout_and_dtype_is_read(tmp_path: Path, layout: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    S = sp.random_array((30, 20), density=0.2, rng=rng, format="csr")
    S.data = random_values(rng, S.nnz, dtype)
    path = tmp_path / "S.npz"
    sp.save_npz(path, S.asformat(layout))
    result = load_rows(path, 7, 25, (30, 20))
    assert result.dtype == S.dtype
    np.testing.assert_array_equal(result.toarray(), S[7:25].toarray())
    assert (RowLoader([path], (30, 20)).row_lengths(0, 30) is None) == (layout != "csr")


def test_only_the_requested_rows_of_uncompressed_members_are_read(tmp_path: Path, monkeypatch: Any) -> None:
    n = 200_000
    path = tmp_path / "S.npz"
    sp.save_npz(path, sp.csr_array(sp.diags_array(np.arange(1.0, n + 1))), compressed=False)
    monkeypatch.setattr(zipfile.ZipExtFile, "seek", None)
    tracemalloc.start()
    result = load_rows(path, n - 10, n, (n, n))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.data.tolist() == list(range(n - 9, n + 1))
    assert peak - io.DEFAULT_BUFFER_SIZE < 90_000  # Python 3.14 enlarged the buffer of open files


def rewrite(path: Path, **members: Any) -> None:
    """Rewrite an archive with some of its members replaced; a value of None removes the member."""
    with np.load(path) as archive:
        original_members = dict(archive)
    np.savez(path, **{name: a for name, a in (original_members | members).items() if a is not None})


MALFORMED_ARRAYS = {
    "no indices": ({"indices": None}, "indices"),
    "no shape": ({"shape": None}, "shape"),
    "three sizes": ({"shape": np.array([3, 3, 3])}, "values to unpack"),
    "short indptr": ({"indptr": np.array([0, 1], np.int32)}, "indptr must be a vector of 4"),
    "falling indptr": ({"indptr": np.array([0, 2, 1, 3], np.int32)}, "never decrease"),
    "indptr of floats": ({"indptr": np.array([0.0, 1, 2, 3])}, "must be integers"),
    "indptr beyond the entries": ({"indptr": np.array([0, 1, 2, 9], np.int32)}, "data must be a vector of 9"),
    "column out of range": ({"indices": np.array([0, 1, 3], np.int32)}, "ind"),
    "negative column": ({"indices": np.array([0, -1, 2], np.int32)}, "ind"),
    "pickled data": ({"data": np.array([1, 2, {}], object)}, "object"),
    "two-dimensional data": ({"data": np.ones((3, 1))}, "data must be vectors"),
}


@pytest.mark.parametrize("name", MALFORMED_ARRAYS)
def test_malformed_npz_is_an_error(tmp_path: Path, name: str) -> None:
    members, why = MALFORMED_ARRAYS[name]
    path = tmp_path / "bad.npz"
    sp.save_npz(path, sp.eye_array(3, format="csr"))
    rewrite(path, **members)
    with pytest.raises(FileFormatError, match=rf"bad.npz .*{why}"):
        load_rows(path, 0, 3, (3, 3))


# -------------------------------------------------------------------- callables


@pytest.mark.parametrize("kind", ["csr_array", "csr_matrix", "coo_array", "dense", "triple", "coordinates", "gsparse"])
def test_callables_may_return_any_form_of_rows_that_scipy_accepts(kind: str) -> None:
    S = sp.random_array((40, 30), density=0.2, rng=np.random.default_rng(0), format="csr")

    def source(lo: int, hi: int) -> Any:
        part = S[lo:hi]
        coo = part.tocoo()
        return {
            "csr_array": part,
            "csr_matrix": sp.csr_matrix(part),
            "coo_array": coo,
            "dense": part.toarray(),
            "triple": (part.data, part.indices, part.indptr),
            "coordinates": (coo.data, (coo.row, coo.col)),
            "gsparse": GpuSparseMatrix(part, device="cpu"),
        }[kind]

    sources = RowLoader([source], S.shape)
    for lo, hi in ((0, 40), (3, 17), (9, 9)):
        result = sources.rows(lo, hi)
        assert type(result) is sp.csr_array
        assert_same(result, S[lo:hi])
    assert sources.row_lengths(0, 40) is None


def test_callables_that_return_anything_else_are_errors() -> None:
    def rows_of(value: Any) -> sp.csr_array:
        return load_rows(lambda lo, hi: value, 2, 5, (10, 4))

    with pytest.raises(ShapeError, match=r"must give shape \(3, 4\) for rows 2 to 5, got \(10, 4\)"):
        rows_of(sp.csr_array((10, 4)))
    with pytest.raises(ShapeError, match=r"got \(4,\)"):
        rows_of(np.ones(4))
    for nonsense in (None, "abc", (np.ones(1), [4], [0, 1, 1, 1]), (np.ones(1), ([3], [0])), ([1.0], [0], [0, 1])):
        with pytest.raises(StructureError, match="for rows 2 to 5, got"):
            rows_of(nonsense)
    with pytest.raises(ZeroDivisionError):
        load_rows(lambda lo, hi: 1 // 0, 2, 5, (10, 4))


# -------------------------------------------------------------- several sources


@pytest.fixture
def stacked(tmp_path: Path) -> tuple[list[Path], sp.csr_array]:
    rng = np.random.default_rng(0)
    parts = [sp.random_array((rows, 12), density=0.3, rng=rng, format="csr") for rows in (5, 0, 12, 3)]
    paths = [tmp_path / name for name in ("a.npz", "b.npz", "c.mtx", "d.npz")]
    parts[2] = sp.csr_array(parts[2] + parts[2].T)
    for path, part in zip(paths, parts, strict=True):
        if path.suffix == ".npz":
            sp.save_npz(path, part, compressed=path.name != "d.npz")
        else:
            scipy.io.mmwrite(path, part, symmetry="symmetric", precision=17)
    return paths, sp.vstack(parts, format="csr")


def test_files_are_stacked_in_the_order_of_the_list(stacked: tuple[list[Path], sp.csr_array]) -> None:
    paths, whole = stacked
    sources = pickle.loads(pickle.dumps(RowLoader(paths, whole.shape)))
    for lo in range(21):
        for hi in range(lo, 21):
            assert_same(sources.rows(lo, hi), whole[lo:hi])
    np.testing.assert_array_equal(sources.row_lengths(0, 5), np.diff(whole.indptr[:6]))
    np.testing.assert_array_equal(sources.row_lengths(17, 20), np.diff(whole.indptr[17:]))
    assert sources.row_lengths(0, 6) is None
    assert sources.row_lengths(3, 3).size == 0


def test_rows_have_the_common_dtype_of_all_files(tmp_path: Path) -> None:
    for name, dtype in (("a.npz", np.float32), ("b.npz", np.int64)):
        sp.save_npz(tmp_path / name, sp.eye_array(3, dtype=dtype, format="dia"))
    (tmp_path / "c.mtx").write_text("%%MatrixMarket matrix coordinate complex general\n3 3 0\n")
    sources = RowLoader([tmp_path / name for name in ("a.npz", "b.npz")], (6, 3))
    assert sources.dtype == np.float64
    assert [sources.rows(*rows).dtype for rows in ((0, 2), (2, 2), (2, 5), (5, 6))] == [np.float64] * 4
    assert RowLoader([tmp_path / name for name in ("a.npz", "c.mtx")], (6, 3)).rows(0, 1).dtype == np.complex128
    assert RowLoader([lambda lo, hi: sp.eye_array(hi - lo, 3, dtype=np.int8)], (6, 3)).dtype is None


def test_only_headers_are_read_before_rows_are_requested(stacked: tuple[list[Path], sp.csr_array]) -> None:
    paths, whole = stacked
    paths[2].write_text("\n".join(paths[2].read_text().splitlines()[:-1]))
    sources = RowLoader(paths, whole.shape)
    assert len(pickle.dumps(sources)) < 2000
    assert_same(sources.rows(0, 5), whole[:5])
    with pytest.raises(FileFormatError, match=r"c\.mtx is truncated"):
        sources.rows(0, 6)


def test_relative_paths_stay_valid_in_another_folder(tmp_path: Path, monkeypatch: Any) -> None:
    sp.save_npz(tmp_path / "eye.npz", sp.eye_array(4, format="csr"))
    monkeypatch.chdir(tmp_path)
    sources = RowLoader(["eye.npz"], (4, 4))
    monkeypatch.chdir(os.sep)
    assert sources.rows(1, 3).indices.tolist() == [1, 2]


def test_sources_that_do_not_fit_the_matrix_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "eye.npz"
    sp.save_npz(path, sp.eye_array(4, format="csr"))
    for sources, shape in (([path], (5, 4)), ([path], (4, 5)), ([path, path], (4, 4))):
        with pytest.raises(ShapeError, match=r"must make up a matrix of shape .*theirs are \(4, 4\)"):
            RowLoader(sources, shape)
    for sources in ([], [lambda lo, hi: None, path], [print, print]):
        with pytest.raises(ShapeError, match="one callable for all rows"):
            RowLoader(sources, (4, 4))
    with pytest.raises(TypeError, match="must be a list"):
        RowLoader(path, (4, 4))  # type: ignore[arg-type]
    for shape in ((4,), 4, (4, -1), ("a", 4), (4.5, 4)):
        with pytest.raises(ShapeError, match="two integers"):
            RowLoader([path], shape)  # type: ignore[arg-type]
    for lo, hi in ((-1, 2), (3, 2), (0, 5)):
        with pytest.raises(ShapeError, match="are not all among the 4"):
            load_rows(path, lo, hi, (4, 4))
    with pytest.raises(FileNotFoundError):
        RowLoader([tmp_path / "none.npz"], (4, 4))
    with pytest.raises(FileFormatError, match="unknown kind"):
        RowLoader([tmp_path / "a.csv"], (4, 4))


# ------------------------------------------------------------ files of a checkpoint


def test_all_files_are_of_the_checkpoint_that_the_link_meant_when_headers_were_read(tmp_path: Path) -> None:
    link, checkpoints = tmp_path / "rows", [tmp_path / "old", tmp_path / "new"]
    for factor, folder in enumerate(checkpoints, start=1):
        folder.mkdir()
        for rank in range(3):
            sp.save_npz(folder / f"{rank}.npz", factor * sp.eye_array(3, 9, k=3 * rank, format="csr"))
    sources = []
    for folder in checkpoints:
        link.unlink(missing_ok=True)
        link.symlink_to(folder.name)
        sources.append(pickle.loads(pickle.dumps(RowLoader([link / f"{rank}.npz" for rank in range(3)], (9, 9)))))
    for factor, source in enumerate(sources, start=1):
        assert_same(source.rows(0, 9), factor * sp.eye_array(9, dtype=float))
