"""Pictures of a multigrid hierarchy: bars of the levels, and aggregates on a grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse.errors import ShapeError
from gsparse.linalg import amg
from gsparse.plot import hierarchy

pytest.importorskip("matplotlib", reason="pictures need matplotlib")

SIDE = 24


@pytest.fixture(scope="module")
def M() -> Any:
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(SIDE, SIDE))
    return amg(sp.csr_array(sp.kronsum(line, line)), max_coarse=8)


@pytest.fixture
def ax() -> Any:
    from matplotlib.figure import Figure

    return Figure().subplots()


def groups_of(M: Any, level: int) -> np.ndarray:
    """Return the aggregate of each node of the finest level, computed one node at a time."""
    aggregates = [M.device.download(part) for part in M.aggregates[: level + 1]]
    groups = []
    for node in range(aggregates[0].size):
        group = node
        for part in aggregates:
            group = part[group] if group >= 0 else -1
        groups.append(group)
    return np.array(groups)


def test_without_nodes_the_levels_are_bars_of_rows_and_entries(M: Any, ax: Any) -> None:
    assert hierarchy(M, ax) is ax
    heights = [[bar.get_height() for bar in bars] for bars in ax.containers]
    assert heights == [[entries for _, entries in M.sizes], [rows for rows, _ in M.sizes]]
    assert f"operator complexity {M.operator_complexity:.2f}" in ax.get_title()
    assert ax.get_yscale() == "log"


@pytest.mark.parametrize("level", [0, 1])
def test_a_grid_shows_one_colour_and_no_line_within_an_aggregate(M: Any, ax: Any, level: int) -> None:
    hierarchy(M, ax, level=level, shape=(SIDE, SIDE))
    groups = groups_of(M, level).reshape(SIDE, SIDE)
    colors = ax.images[0].get_array()
    for group in np.unique(groups):
        assert len(np.unique(colors[groups == group], axis=0)) == 1
    borders = (groups[:, 1:] != groups[:, :-1]).sum(), (groups[1:] != groups[:-1]).sum()
    assert tuple(len(lines.get_segments()) for lines in ax.collections) == borders
    assert ax.get_title() == f"{SIDE * SIDE} nodes in {groups.max() + 1} aggregates"


def test_of_a_grid_in_three_dimensions_the_middle_is_shown(M: Any, ax: Any) -> None:
    shape = 4, SIDE, SIDE // 4
    hierarchy(M, ax, shape=shape)
    assert ax.images[0].get_array().shape == (*shape[1:], 4)
    groups = groups_of(M, 0).reshape(shape)[2]
    assert len(ax.collections[0].get_segments()) == (groups[:, 1:] != groups[:, :-1]).sum()


def test_a_matrix_in_place_of_its_hierarchy_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a multigrid preconditioner is needed, got csr_array: pass .*amg\(A\)"):
        hierarchy(sp.eye_array(4, format="csr"))


def test_nodes_without_an_aggregate_are_black(ax: Any) -> None:
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(30, 30))
    isolated = sp.block_diag([sp.kronsum(line, line), sp.eye_array(10)], format="csr")
    M = amg(isolated)
    groups = groups_of(M, 0)
    assert (groups < 0).sum() == 10
    hierarchy(M, ax, shape=(70, 13))
    colors = ax.images[0].get_array().reshape(-1, 4)
    np.testing.assert_array_equal(np.all(colors == (0, 0, 0, 1), axis=1), groups < 0)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"shape": (24, 23)}, ShapeError, "whose product is 576"),
        ({"shape": (2, 2, 2, 72)}, ShapeError, "two or three lengths"),
        ({"shape": (24, 24), "level": 9}, ValueError, "level must be one of"),
        ({"shape": (24, 24), "level": -1}, ValueError, "level must be one of"),
    ],
)
def test_what_cannot_be_drawn_is_an_error_that_says_why(
    M: Any, ax: Any, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        hierarchy(M, ax, **options)
