"""Plots: each function draws into the Axes that it receives, and the figures of a benchmark run go to a folder."""

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
from gsparse.linalg import cg, lsmr, solve
from gsparse.plot import axes, runs, structure

pytest.importorskip("matplotlib", reason="pictures need matplotlib")


@pytest.fixture
def ax() -> Any:
    from matplotlib.figure import Figure

    return Figure().subplots()


def record(what: str, us: float, **fields: Any) -> Record:
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


def test_density_of_a_sample_approximates_that_of_all_entries() -> None:
    S = sp.diags_array([1.0, 1.0, 1.0], offsets=[-1, 0, 1], shape=(8000, 8000)).tocsr()
    whole, part = plot.density(S, 8), plot.density(S, 8, most=800)
    assert abs(part.sum() - whole.sum()) <= 8
    assert np.array_equal(np.argmax(part, axis=1), np.arange(8))
    assert np.array_equal(plot.density(S, 8, most=10**9), whole)


def test_row_lengths_count_every_row(ax: Any) -> None:
    lengths = np.concatenate([np.zeros(3, int), np.full(5, 2), [16, 17, 400, 5000]])
    S = sp.csr_array((np.ones(lengths.sum()), np.zeros(lengths.sum(), int), np.concatenate([[0], np.cumsum(lengths)])))
    plot.row_lengths(S, ax)
    assert sum(bar.get_height() for bar in ax.patches) == lengths.size


def of_lengths(*lengths: int) -> sp.csr_array:
    """Return a matrix with rows of these lengths."""
    indptr = np.concatenate([[0], np.cumsum(lengths, dtype=int)])
    return sp.csr_array((np.ones(indptr[-1]), np.zeros(indptr[-1], int), indptr), shape=(len(lengths), 9))


@pytest.mark.parametrize("inches", [runs.SHEET_INCHES, 6])
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


def test_a_distribution_of_fewer_entries_than_workers_has_the_true_ratio(ax: Any) -> None:
    A = SimpleNamespace(nnz_per_worker=[1, 0, 0, 0], ghosts_per_worker=[0] * 4, row_bounds=(0, 1, 1, 1, 1))
    plot.distribution(A, ax)
    assert texts(ax)[0] == "entries (most: 4.00 times the mean)"


def test_a_distribution_without_entries_is_drawn(ax: Any) -> None:
    plot.distribution(SimpleNamespace(nnz_per_worker=[0], ghosts_per_worker=[0], row_bounds=(0, 0)), ax)
    ax.figure.canvas.draw()


# ------------------------------------------------------------------------------------- products, solves, notebooks

LINE = sp.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(400, 400)).tocsr()


def texts(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


@pytest.mark.parametrize(("dtype", "flops"), [("float64", 2), ("complex128", 8)])
def test_a_roofline_marks_each_format_at_its_prediction(ax: Any, dtype: str, flops: int) -> None:
    A = gsparse.GpuSparseMatrix(LINE.astype(dtype), device="cpu")
    assert plot.roofline(A, ax, bandwidth=20e9) is ax
    roof, *marks = ax.lines
    np.testing.assert_allclose(roof.get_ydata(), np.array(roof.get_xdata()) * 20)
    points = [(line.get_xdata()[0], line.get_ydata()[0]) for line in marks if line.get_label() != "_"]
    work = flops * LINE.nnz
    expected = [(work / c.nbytes, work / c.seconds / 1e9) for c in A.plan.candidates]
    chosen = [c.format for c in A.plan.candidates].index(A.plan.format)
    expected.insert(chosen + 1, expected[chosen])  # the ring around the mark of the chosen format
    np.testing.assert_allclose(points, expected)
    assert texts(ax)[0] == "memory: 20 GB/s"
    assert f"{A.plan.format} (chosen)" in texts(ax)
    ax.figure.canvas.draw()


def test_a_roofline_shows_what_was_measured(ax: Any, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("GSPARSE_CACHE_DIR", str(tmp_path))
    A = gsparse.GpuSparseMatrix(LINE, device="cpu", tune=True)
    A @ np.ones(400)
    plot.roofline(A, ax, bandwidth=20e9)
    filled = {line.get_ydata()[0] for line in ax.lines if line.get_fillstyle() == "full" and len(line.get_xdata()) == 1}
    assert filled == {2 * LINE.nnz / c.measured / 1e9 for c in A.plan.candidates if c.measured}


def test_the_roof_is_measured_if_none_is_given(ax: Any) -> None:
    A = gsparse.GpuSparseMatrix(LINE, device="cpu")
    bandwidth = A.device.copy_bandwidth
    assert 1e8 < bandwidth < 1e13
    plot.roofline(A, ax)
    assert texts(ax)[0].startswith("memory: ")


def test_a_roofline_of_another_librarys_matrix_names_the_remedy(ax: Any) -> None:
    with pytest.raises(TypeError, match=r"needs a GpuSparseMatrix, got csr_array: pass GpuSparseMatrix\(A\)"):
        plot.roofline(LINE, ax)


def test_a_roofline_says_what_marks_above_the_roof_mean(ax: Any) -> None:
    A = gsparse.GpuSparseMatrix(LINE, device="cpu")
    plot.roofline(A, ax, bandwidth=1.0)
    assert "above the line: from a cache" in ax.get_legend().get_title().get_text()


def test_a_roofline_of_an_empty_matrix_is_drawn(ax: Any) -> None:
    plot.roofline(gsparse.GpuSparseMatrix(sp.csr_array((0, 3)), device="cpu"), ax, bandwidth=1e9)
    ax.figure.canvas.draw()


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


def test_convergence_without_results_is_refused(ax: Any) -> None:
    with pytest.raises(ValueError, match="needs a SolveResult"):
        plot.convergence({}, ax)


def test_convergence_of_one_result_needs_no_name_and_zeros_are_left_out(ax: Any) -> None:
    plot.convergence(cg(LINE, np.zeros(400), full_output=True), ax)
    assert texts(ax) == ["converged, 0 iterations"]
    assert np.isnan(ax.lines[0].get_ydata()).all()
    ax.figure.canvas.draw()


def test_convergence_names_a_solve_by_a_factorization_in_the_legend(ax: Any) -> None:
    result = solve(LINE, np.ones(400))
    assert result.residuals.size == 0
    plot.convergence({"automatic": result}, ax)
    assert texts(ax) == ["automatic: converged, 0 iterations"]
    ax.figure.canvas.draw()


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


def test_times_are_scaled_by_the_vendors(ax: Any) -> None:
    plot.times_by_format([record("ellpack", 2.0), record("ellpack", 8.0, matrix="n", nnz=10)], ax)
    (line, _) = ax.lines
    assert dict(zip(line.get_xdata(), line.get_ydata(), strict=True)) == {1: 0.5, 0: 2.0}
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["n", "m"]
    assert ax.get_ylabel() == "time over cuSPARSE best-of (lower is better)"
    assert ax.get_legend().get_texts()[0].get_text() == "ellpack: 1.00"


def test_setup_is_scaled_by_a_product(ax: Any) -> None:
    rows = [record("ellpack", 2.0), record("csr_scalar", 2.0, setup_us=None), record("ellpack", 4.0, matrix="n")]
    plot.setup_by_format(rows, ax)
    assert [list(line.get_ydata()) for line in ax.lines[:-1]] == [[10.0, 5.0]]


def test_a_single_matrix_has_a_bar_for_each_way_and_count_of_threads(ax: Any) -> None:
    rows = [
        record(what, us / threads, threads=threads)
        for threads in (1, 2)
        for what, us in (("ellpack", 2.0), ("csr_scalar", 8.0))
    ]
    plot.times_by_format(rows, ax)
    ends = [[round(bar.get_x() + bar.get_width(), 9) for bar in bars] for bars in ax.containers]
    assert ends == [[0.5, 2.0], [0.25, 1.0]]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["ellpack", "csr_scalar"]
    for bars in ax.containers:
        assert [round(bar.get_y() + bar.get_height() / 2) for bar in bars] == [0, 1]
    assert texts(ax) == ["1 thread(s)", "2 thread(s)"]
    assert ax.get_xlabel() == "time over cuSPARSE best-of (lower is better), m"
    ax.figure.canvas.draw()


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


def test_a_format_that_was_left_out_is_shown_with_the_reason_in_the_order_of_the_table(ax: Any) -> None:
    no_time: dict[str, Any] = {"kernel_us": None, "setup_us": None}
    rows = [
        record("row_pattern", 0, status="skipped", note="row_pattern does not fit", **no_time),
        record("ellpack", 2.0),
        record("csr_vector", 0, status="failed", note="OutOfMemory", **no_time),
    ]
    for draw in (plot.times_by_format, plot.setup_by_format):
        ax.clear()
        draw(rows, ax)
        assert [tick.get_text() for tick in ax.get_yticklabels()] == ["row_pattern", "ellpack", "csr_vector"]
        notes = {int(text.get_position()[1]): text.get_text() for text in ax.texts if "2" not in text.get_text()}
        assert notes.items() >= {0: "left out: row_pattern does not fit", 2: "FAILED: OutOfMemory"}.items()
        ax.figure.draw_without_rendering()


def test_several_matrices_name_the_formats_that_were_left_out_and_how_many_were_measured(ax: Any) -> None:
    skipped: dict[str, Any] = {"kernel_us": None, "setup_us": None, "status": "skipped", "note": "does not fit"}
    rows = [
        record("ellpack", 2.0),
        record("ellpack", 8.0, matrix="n"),
        record("csr_scalar", 4.0),
        record("csr_scalar", 0, matrix="n", **skipped),
        record("row_pattern", 0, **skipped),
        record("row_pattern", 0, matrix="n", **skipped),
    ]
    plot.times_by_format(rows, ax)
    assert texts(ax) == ["ellpack: 1.00", "csr_scalar: 1.00 (1 of 2)", "row_pattern: left out"]


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


def test_a_single_matrix_without_set_up_is_drawn(ax: Any) -> None:
    plot.setup_by_format([record("csr_scalar", 2.0, setup_us=None)], ax)
    assert not ax.patches
    ax.figure.canvas.draw()


def test_each_number_of_threads_has_a_line(ax: Any) -> None:
    rows = [
        record("plan", t * n, kind="plan", threads=t, nnz=n, kernel_us=None, call_us=n / t)
        for t in (1, 2)
        for n in (10, 100)
    ]
    plot.thread_scaling(rows, ax)
    assert [line.get_label() for line in ax.lines] == ["gsparse, 1 thread(s)", "gsparse, 2 thread(s)"]
    assert list(ax.lines[1].get_ydata()) == [5.0, 50.0]


def test_each_number_of_threads_has_a_colour_of_its_own(ax: Any) -> None:
    rows = [record(what, 1.0, kind=what, threads=t) for t in (2, 3, 4, 6, 7) for what in ("plan", "library")]
    plot.thread_scaling(rows, ax)
    assert len({(line.get_color(), line.get_linestyle()) for line in ax.lines}) == len(rows)
    assert len({line.get_color() for line in ax.lines}) == 5


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

    monkeypatch.setattr(axes, "import_module", absent)
    with pytest.raises(plot.PlotError, match=r"pip install 'gsparse-gpu\[plot\]'"):
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


def test_a_picture_of_a_profile_has_two_bars_for_each_row(ax: Any) -> None:
    A = gsparse.GpuSparseMatrix(LINE, device="cpu")
    with gsparse.profile() as p:
        cg(A, A @ np.ones(400))
    assert plot.profile(p, ax, most=3) is ax
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert any("other rows" in label for label in labels)
    assert "outside gsparse" in labels
    waiting = [bar.get_width() for bar in ax.containers[0]]
    assert len(waiting) == len(labels) == len(ax.containers[1])
    assert sum(waiting) == pytest.approx(p.seconds)
    with pytest.raises(TypeError, match=r"what gsparse.profile\(\) returned, got csr_array"):
        plot.profile(LINE)
