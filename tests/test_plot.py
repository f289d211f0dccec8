"""Pictures: each function draws into the Axes it is given, and a run's figures land in a folder."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
from gsparse import cli, plot
from gsparse.bench.records import Record

pytest.importorskip("matplotlib", reason="pictures need matplotlib")


@pytest.fixture
def ax() -> Any:
    from matplotlib.figure import Figure

    return Figure().subplots()


def record(what: str, us: float, **fields: Any) -> Record:
    known: dict[str, Any] = {"matrix": "m", "rows": 9, "cols": 9, "nnz": 90, "longest": 10, "dtype": "float64"}
    known |= {"device": "d", "what": what, "kind": "format", "kernel_us": us, "reference": "cuSPARSE best-of"}
    return Record(**(known | {"reference_us": 4.0, "setup_us": 20.0} | fields))


@pytest.mark.parametrize("shape", [(1000, 37), (5, 5000), (1, 1), (0, 4), (4, 0)])
def test_density_counts_every_entry_once(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "CHUNK_ENTRIES", 50)
    S = sp.random_array(shape, density=0.05, format="csr", rng=np.random.default_rng())
    counts = plot.density(S, 16)
    assert counts.sum() == S.nnz
    assert max(counts.shape) <= 16
    dense = S.toarray() != 0
    if min(shape) > 0:
        rows, columns = np.nonzero(dense)
        exact = np.zeros_like(counts)
        np.add.at(exact, (rows * counts.shape[0] // shape[0], columns * counts.shape[1] // shape[1]), 1)
        assert np.array_equal(counts, exact)


def test_our_own_matrices_are_drawn_without_lending_their_arrays(ax: Any, recwarn: pytest.WarningsRecorder) -> None:
    A = gsparse.GpuSparseMatrix(sp.eye_array(50, format="csr"), device="cpu")
    assert plot.sparsity(A, ax) is ax
    plot.row_lengths(A, ax)
    assert A @ np.ones(50) == pytest.approx(1.0)
    assert not recwarn.list


def test_row_lengths_count_every_row(ax: Any) -> None:
    lengths = np.concatenate([np.zeros(3, int), np.full(5, 2), [16, 17, 400, 5000]])
    S = sp.csr_array((np.ones(lengths.sum()), np.zeros(lengths.sum(), int), np.concatenate([[0], np.cumsum(lengths)])))
    plot.row_lengths(S, ax)
    assert sum(bar.get_height() for bar in ax.patches) == lengths.size


def test_a_distribution_shows_entries_rows_and_ghosts_of_each_worker(ax: Any) -> None:
    A = SimpleNamespace(nnz_per_worker=[90, 70, 0], ghosts_per_worker=[4, 0, 0], row_bounds=(0, 10, 18, 18))
    assert plot.distribution(A, ax) is ax
    left, right = ax.figure.axes
    entries, (rows, ghosts) = left.containers[0], right.containers
    drawn = [[bar.get_height() for bar in bars] for bars in (entries, rows, ghosts)]
    assert drawn == [[90, 70, 0], [10, 8, 0], [4, 0, 0]]
    assert [bar.get_y() for bar in ghosts] == [10, 8, 0]
    assert [round(bar.get_x() + bar.get_width() / 2) for bar in [*entries, *rows]] == [0, 1, 2] * 2
    texts = [text.get_text() for text in left.get_legend().get_texts()]
    assert texts == ["entries (most: 1.69 times the mean)", "rows", "ghosts (in all 0.22 a row)"]
    ax.figure.canvas.draw()


def test_a_distribution_of_nothing_is_drawn(ax: Any) -> None:
    plot.distribution(SimpleNamespace(nnz_per_worker=[0], ghosts_per_worker=[0], row_bounds=(0, 0)), ax)
    ax.figure.canvas.draw()


def test_times_are_scaled_by_the_vendors(ax: Any) -> None:
    plot.times_by_format([record("ellpack", 2.0), record("ellpack", 8.0, matrix="n", nnz=10)], ax)
    (line, _) = ax.lines
    assert dict(zip(line.get_xdata(), line.get_ydata(), strict=True)) == {1: 0.5, 0: 2.0}
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["n", "m"]
    assert ax.get_ylabel() == "time over cuSPARSE best-of"
    assert ax.get_legend().get_texts()[0].get_text() == "ellpack: 1.00"


def test_setup_is_scaled_by_a_product(ax: Any) -> None:
    plot.setup_by_format([record("ellpack", 2.0), record("csr_scalar", 2.0, setup_us=None)], ax)
    assert [list(line.get_ydata()) for line in ax.lines[:-1]] == [[10.0]]


def test_threads_have_a_line_each(ax: Any) -> None:
    rows = [
        record("plan", t * n, kind="plan", threads=t, nnz=n, kernel_us=None, call_us=n / t)
        for t in (1, 2)
        for n in (10, 100)
    ]
    plot.thread_scaling(rows, ax)
    assert [line.get_label() for line in ax.lines] == ["gsparse, 1 thread(s)", "gsparse, 2 thread(s)"]
    assert list(ax.lines[1].get_ydata()) == [5.0, 50.0]


def test_without_axes_a_new_figure_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ax = plot.sparsity(sp.eye_array(9, format="csr"))
    assert ax.figure in map(pyplot.figure, pyplot.get_fignums())
    pyplot.close("all")


def test_without_matplotlib_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(plot, "import_module", absent)
    with pytest.raises(plot.PlotError, match=r"pip install 'gsparse\[plot\]'"):
        plot.sparsity(sp.eye_array(3))


def test_the_command_draws_every_figure(tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "m.npz", sp.random_array((60, 60), density=0.1, format="csr", rng=np.random.default_rng(3)))
    out = tmp_path / "figures"
    options = ["--device", "cpu", "--threads", "1", "--repeats", "1", "--plot", str(out)]
    assert cli.main(["bench", str(tmp_path / "m.npz"), *options]) == 0
    drawn = {path.name for path in out.iterdir()}
    assert drawn == {"times_float64.png", "setup_float64.png", "sparsity.png", "row_lengths.png"}
    assert all(path.stat().st_size > 5000 for path in out.iterdir())


def test_the_scaling_study_is_drawn(tmp_path: Path) -> None:
    options = ["--cpu-scaling", "--sizes", "1e3,1e4", "--threads", "1,2", "--repeats", "1", "--dtype", "float32"]
    assert cli.main(["bench", *options, "--plot", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        "times_float32.png",
        "setup_float32.png",
        "threads_float32.png",
    }
