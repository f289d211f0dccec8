"""Plots: each function draws into the Axes that it receives, and commands write files."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
from gsparse import cli, plot
from gsparse.bench.records import Record
from gsparse.linalg import cg, lsmr
from gsparse.plot import axes, structure

pytest.importorskip("matplotlib", reason="pictures need matplotlib")


@pytest.fixture
def ax() -> Any:
    from matplotlib.figure import Figure

    return Figure().subplots()


def record(what: str, us: float | None, **fields: Any) -> Record:
    defaults: dict[str, Any] = {"matrix": "m", "rows": 9, "cols": 9, "nnz": 90, "longest": 10, "dtype": "float64"}
    defaults |= {"device": "d", "what": what, "kind": "format", "kernel_us": us, "reference": "cuSPARSE best-of"}
    return Record(**(defaults | {"reference_us": 4.0, "setup_us": 20.0} | fields))


@pytest.mark.parametrize("shape", [(1000, 37), (5, 5000), (1, 1), (0, 4), (4, 0)])
def test_density_counts_every_entry_once(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setattr(structure, "CHUNK_ENTRIES", 50)
    S = sp.random_array(shape, density=0.05, format="csr", rng=rng)
    counts = plot.density(S, 16)
    assert counts.sum() == S.nnz
    assert max(counts.shape) <= 16
    dense = S.toarray() != 0
    if min(shape) > 0:
        rows, columns = np.nonzero(dense)
        exact = np.zeros_like(counts)
        np.add.at(exact, (rows * counts.shape[0] // shape[0], columns * counts.shape[1] // shape[1]), 1)
        assert np.array_equal(counts, exact)


def test_plots_of_our_matrices_take_no_loans(ax: Any) -> None:
    A = gsparse.GpuSparseMatrix(sp.eye_array(50, format="csr"), device="cpu")
    with gsparse.strict():  # which refuses loans
        assert plot.sparsity(A, ax) is ax
        plot.row_lengths(A, ax)
    assert not A.stats.host_operations


@pytest.mark.parametrize("shape", [(300, 40), (40, 300), (7, 7)])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_pattern_of_a_view_is_that_of_the_transpose(shape: tuple[int, int], transposed: bool) -> None:
    dense = sp.random_array(shape, density=0.1, rng=np.random.default_rng(1)).toarray()
    dense[:, 0] = 1
    S = sp.csr_array(dense)
    A = gsparse.GpuSparseMatrix(S, device="cpu")
    view, exact = (A.T, S.T.toarray()) if transposed else (A, S.toarray())
    rows, columns = np.nonzero(exact)
    counts = plot.density(view, 5)
    expected = np.zeros_like(counts)
    np.add.at(expected, (rows * 5 // exact.shape[0], columns * 5 // exact.shape[1]), 1)
    assert np.array_equal(counts, expected)
    assert np.array_equal(structure.lengths_of(view), (exact != 0).sum(axis=1))


def of_lengths(*lengths: int) -> sp.csr_array:
    """Return a matrix with rows of these lengths."""
    indptr = np.concatenate([[0], np.cumsum(lengths, dtype=int)])
    return sp.csr_array((np.ones(indptr[-1]), np.zeros(indptr[-1], int), indptr), shape=(len(lengths), 9))


@pytest.mark.parametrize("inches", [2.6, 6])
@pytest.mark.parametrize(
    ("lengths", "labels"),
    [
        pytest.param([3] * 1000, ["3"], id="equal"),
        pytest.param([500] * 1000, [], id="equal and long"),
        pytest.param([4, *[5] * 30, *[6] * 400, *[7] * 9000], ["4", "5", "6", "7"], id="a stencil"),
        pytest.param([8, 12, 18, 27], [], id="a wide stencil"),
        pytest.param(range(30, 61), [], id="within a decade"),
        pytest.param([1, 10, 100, 1000, 10_000, 100_000], [], id="five decades"),
        pytest.param([0] * 50 + [1, 2, 3], ["0", "1", "2", "3"], id="empty and short"),
        pytest.param([0] * 50 + [1, 20, 300], [], id="empty and long"),
        pytest.param([0, 0], ["0"], id="empty alone"),
        pytest.param([], [], id="no rows"),
    ],
)
@pytest.mark.few(4)
def test_row_lengths_have_labels_that_do_not_overlap(lengths: Any, labels: list[str], inches: float) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(inches, inches), layout="constrained")
    ax = plot.row_lengths(of_lengths(*lengths), figure.subplots())
    figure.draw_without_rendering()
    assert set(labels) <= {label.get_text() for label in ax.get_xticklabels()}
    for axis, (low, high) in ((ax.xaxis, sorted(ax.get_xlim())), (ax.yaxis, sorted(ax.get_ylim()))):
        ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
        shown = [tick.label1 for tick in ticks if low <= tick.get_loc() <= high and tick.label1.get_text()]
        boxes = [label.get_window_extent() for label in shown]
        assert len(boxes) >= 2
        for one, other in itertools.combinations(boxes, 2):
            assert not one.overlaps(other)


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
    assert texts == ["entries (most: 1.69 times the mean)", "rows", "ghosts (0.22 per row)"]
    ax.figure.canvas.draw()


def test_a_distribution_of_a_matrix_that_is_not_distributed_is_refused(ax: Any) -> None:
    with pytest.raises(TypeError, match=r"a distributed matrix is needed, got csr_array: .*distribute\(A\)"):
        plot.distribution(sp.eye_array(3, format="csr"), ax)


def test_a_distribution_without_entries_is_drawn(ax: Any) -> None:
    plot.distribution(SimpleNamespace(nnz_per_worker=[0], ghosts_per_worker=[0], row_bounds=(0, 0)), ax)
    ax.figure.canvas.draw()


# ------------------------------------------------------------------------------------- products, solves, notebooks

LINE = sp.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(400, 400)).tocsr()


def texts(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_convergence_draws_a_line_per_solve_and_right_hand_side(ax: Any) -> None:
    B = np.random.default_rng(0).random((400, 2))
    done = cg(LINE, B, rtol=1e-8, full_output=True)
    stopped = cg(LINE, B[:, 0], rtol=1e-8, maxiter=3, full_output=True)
    assert plot.convergence({"both": done, "stopped": stopped}, ax) is ax
    first, second, third = ax.lines
    for line, column in ((first, 0), (second, 1)):
        drawn, residuals = np.array(line.get_ydata()), done.residuals[:, column]
        known = np.isfinite(residuals) & (residuals > 0)
        np.testing.assert_array_equal(drawn[known], (residuals / residuals[0])[known])
        assert line.get_marker() == "o"
    assert len(third.get_ydata()) == 4
    assert third.get_marker() == "x"
    assert texts(ax) == [f"both: converged, {done.iterations} iterations", "stopped: reached maxiter, 3 iterations"]
    assert ax.get_yscale() == "log"
    ax.figure.canvas.draw()


def test_convergence_of_least_squares_has_a_dashed_line_that_goes_to_zero(ax: Any) -> None:
    tall, b = sp.csr_array(LINE[:, :300]), np.random.default_rng(0).random(400)
    result = lsmr(tall, b, atol=1e-10, btol=1e-10, maxiter=2000, full_output=True)
    plot.convergence({"tall": result}, ax)
    residual, normal = ax.lines
    assert residual.get_linestyle() == "-" and min(residual.get_ydata()) > 0.1
    assert normal.get_linestyle() == "--" and min(normal.get_ydata()) < 1e-8
    assert texts(ax) == [f"tall: {result.reason}, {result.iterations} iterations", "tall: norm(A.H @ r)"]
    ax.figure.canvas.draw()


@pytest.mark.parametrize(
    "wrong", [lambda result: (result.x, result.info), lambda result: {"cg": (result.x, result.info)}]
)
def test_convergence_refuses_a_pair_and_asks_for_the_result(ax: Any, wrong: Any) -> None:
    result = cg(LINE, np.ones(400), full_output=True)
    with pytest.raises(TypeError, match=r"pass the SolveResult of full_output=True, got tuple"):
        plot.convergence(wrong(result), ax)


def pixels(html: str) -> Any:
    """Return the thumbnail in the HTML of a notebook as an array."""
    import base64
    import io

    from matplotlib.image import imread

    return imread(io.BytesIO(base64.b64decode(html.partition("base64,")[2].partition('"')[0])))


def test_a_notebook_shows_statistics_plan_and_a_thumbnail(recwarn: pytest.WarningsRecorder) -> None:
    S = sp.csr_array((np.ones(200), (np.arange(200), np.arange(200))), shape=(400, 400))
    A = gsparse.GpuSparseMatrix(S, device="cpu")
    html = A._repr_html_()
    for words in ("400 × 400", "0 to 1, mean 0.50, 200 rows empty", A.plan.format, "<summary>plan</summary>"):
        assert words in html
    picture = pixels(html)[..., :3].mean(axis=2)
    down, across = (size // 2 for size in picture.shape)
    inside = picture[8:-8, 8:-8]
    assert inside[: down - 16, : across - 16].min() < 0.9, "entries are upper left"
    assert inside[down:, across:].min() > 0.99, "nothing is lower right"
    assert not recwarn.list
    assert "entries per column" in A.T._repr_html_()


def test_a_notebook_needs_no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(axes, "import_module", absent)
    html = gsparse.GpuSparseMatrix(LINE, device="cpu")._repr_html_()
    assert "400 × 400" in html
    assert "<img" not in html


def test_a_notebook_shows_a_matrix_without_rows_or_columns() -> None:
    for shape in ((0, 3), (3, 0)):
        html = gsparse.GpuSparseMatrix(sp.csr_array(shape), device="cpu")._repr_html_()
        assert f"{shape[0]} × {shape[1]}" in html


# ------------------------------------------------------------------------------------------------ a run's figures


def test_times_are_scaled_by_the_vendors_and_formats_without_a_time_are_left_out(ax: Any) -> None:
    rows = [record("ellpack", 2.0), record("ellpack", 8.0, matrix="n", nnz=10), record("bsr", None, status="skipped")]
    plot.times_by_format(rows, ax)
    (line, _) = ax.lines
    assert dict(zip(line.get_ydata(), line.get_xdata(), strict=True)) == {1: 0.5, 0: 2.0}
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["n", "m"]
    assert ax.get_xlabel() == "time over cuSPARSE best-of (lower is better)"
    assert texts(ax) == ["ellpack, float64"]


def labels_of(axis: Any) -> list[str]:
    """Return the labels of an axis that are visible."""
    low, high = sorted(axis.get_view_interval())
    return [tick.label1.get_text() for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]


@pytest.mark.parametrize("slowest", [1.2, 2.0, 3.9, 5.1, 9.0, 19.0, 21.0, 400.0, 2e3, 1e6])
def test_a_logarithmic_axis_has_at_least_three_plain_numbers(ax: Any, slowest: float) -> None:
    plot.times_by_format([record("ellpack", 4.0), record("csr_scalar", 4.0 * slowest)], ax)
    ax.figure.draw_without_rendering()
    labels = labels_of(ax.xaxis)
    assert 3 <= len(labels) <= 12
    assert "1" in labels
    assert all(float(label) > 0 for label in labels)  # no powers such as $10^0$


def test_sparsity_has_a_colour_bar_that_says_how_many_entries_a_cell_has(ax: Any) -> None:
    plot.sparsity(sp.csr_array(np.ones((40, 40))), ax, cells=10)
    (bar,) = [other for other in ax.figure.axes if other is not ax]
    ax.figure.draw_without_rendering()
    assert bar.get_ylabel() == "entries per cell"
    assert bar.get_ylim() == pytest.approx((1, 16))
    assert labels_of(bar.yaxis)[0] == "1"


def test_a_picture_of_convergence_and_of_a_distribution_has_a_title(ax: Any) -> None:
    plot.convergence(cg(LINE, np.ones(400), full_output=True), ax)
    assert ax.get_title() == "Convergence (circle: success, cross: not converged)"
    ax.clear()
    A = SimpleNamespace(nnz_per_worker=[9000, 7000], ghosts_per_worker=[4, 0], row_bounds=(0, 10, 18))
    plot.distribution(A, ax)
    assert ax.get_title() == "Distribution of 16,000 entries over 2 ranks"
    ax.figure.draw_without_rendering()
    title, legend = (part.get_window_extent() for part in (ax.title, ax.get_legend()))
    assert not title.overlaps(legend)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("A", "size"),
    [
        (np.eye(5), 5), (np.ones(4), 4), (sp.coo_array(np.ones(6)), 6), (sp.csr_array((0, 0)), 0),
        (sp.csr_array((3, 0)), 0),
    ],
    ids=["dense", "vector", "sparse vector", "0 x 0", "3 x 0"],
)  # fmt: skip
def test_everything_that_scipy_converts_to_a_matrix_is_drawn(A: Any, size: int, ax: Any) -> None:
    assert plot.sparsity(A, ax).get_xlabel() == f"{size} columns"
    plot.row_lengths(A)


@pytest.mark.parametrize("draw", [plot.sparsity, plot.row_lengths])
@pytest.mark.parametrize(
    ("A", "got"),
    [(None, "NoneType"), ("A.mtx", "str"), (np.ones((2, 2, 2)), "one of 3 dimensions of float64")],
    ids=["nothing", "a name", "three dimensions"],
)
def test_plotting_something_else_than_a_matrix_names_what_is_needed(draw: Any, A: Any, got: str) -> None:
    from matplotlib import pyplot

    figures = pyplot.get_fignums()
    with pytest.raises(TypeError, match=f"needs a sparse array or matrix, or a dense array of numbers .*, got {got}$"):
        draw(A)
    assert pyplot.get_fignums() == figures  # No empty figure is left open.


def test_the_command_draws_the_times(tmp_path: Path) -> None:
    sp.save_npz(tmp_path / "m.npz", sp.random_array((60, 60), density=0.1, format="csr", rng=np.random.default_rng(3)))
    options = ["--device", "cpu", "--threads", "1", "--repeats", "1", "--plot", str(tmp_path / "times.png")]
    assert cli.main(["bench", str(tmp_path / "m.npz"), *options]) == 0
    assert (tmp_path / "times.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(axes, "import_module", absent)
    with pytest.raises(plot.PlotError, match=r"pip install 'gsparse-gpu\[plot\]'"):
        plot.sparsity(sp.eye_array(3))
