"""How the work of a product with dense columns is divided, a pure function from row statistics and X's layout.

`tests.test_columns` runs each launch, and has a table of measured choices.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from gsparse.formats.launch import LANE_BYTES, Panel, PanelLaunch
from gsparse.formats.row_stats import RowStats
from gsparse.plan.columns import ColumnsPlan, launch_for, plan_columns, seconds_per_columns
from gsparse.plan.cost_model import CPU_MODEL, GPU_MODEL, MachineModel

# Equal rows, more than a device can work on at once; and a few long rows.
EVEN = RowStats(10**7, 10**7, 7 * 10**7, 5, 7, 7.0, 0.2, 0, 7 * 10**7)
LONG = RowStats(10**6, 10**6, 4 * 10**8, 380, 420, 400.0, 10.0, 0, 4 * 10**8)
COLUMNS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 24, 33, 40, 48, 63, 64, 65, 100, 128, 1000)
LANES = pytest.mark.parametrize("lanes", [32, 64])


def rows_of(length: float, num_rows: int = 10**7, **options: Any) -> RowStats:
    """Return the statistics of rows of one length."""
    num_entries = round(length * num_rows)
    return replace(
        EVEN, num_rows=num_rows, nnz=num_entries, max_length=int(length), mean_length=length, std_length=0.0, **options
    )


def planned(stats: RowStats, panel: Panel, *, lanes: int = 32, value_bytes: int = 8, **options: Any) -> ColumnsPlan:
    return plan_columns(stats, panel, lanes=lanes, value_bytes=value_bytes, **options)


def launched(stats: RowStats, panel: Panel, **options: Any) -> PanelLaunch:
    return planned(stats, panel, **options).launch


def first(predicate: Callable[[int], bool], numbers: range) -> int:
    """Return the first number for which a monotone predicate holds."""
    return numbers[bisect_left(numbers, True, key=predicate)]


# ----------------------------------------------------------------------------------------------------------- row-major


@LANES
@pytest.mark.parametrize("stats", [EVEN, replace(EVEN, num_rows=100), LONG], ids=["many", "few", "long"])
@pytest.mark.parametrize("pack", [1, 2, 4])
def test_every_lane_owns_columns_and_no_tile_is_wider_than_needed(stats: RowStats, pack: int, lanes: int) -> None:
    for num_columns in (k * pack for k in COLUMNS):
        launch = launched(stats, Panel(num_columns, pack), lanes=lanes, value_bytes=4)
        assert launch.columns_per_load == pack
        tiles = -(-num_columns // launch.tile)
        # At most half of a tile is idle, and at most about a quarter of a tile of more than eight lanes.
        idle = tiles * launch.tile / num_columns
        assert idle < 2
        assert idle < 1.35 or launch.tile <= 8 * pack
        assert launch.tile <= 64 * pack


@LANES
def test_all_columns_are_in_one_tile_if_there_are_enough_lanes(lanes: int) -> None:
    for num_columns in (1, 2, 4, 8, 16, 32, 64):
        assert launched(EVEN, Panel(num_columns), lanes=lanes).tile == num_columns
    for num_columns in (24, 48):  # with the next power of two, a quarter of the tile would be idle
        assert launched(EVEN, Panel(num_columns), lanes=lanes).tile == 4 / 3 * num_columns
    for num_columns, tile in ((3, 4), (5, 8), (33, 8), (40, 16), (65, 16), (100, 64), (128, 64), (1000, 64)):
        assert launched(EVEN, Panel(num_columns), lanes=lanes).tile == tile


@pytest.mark.parametrize("lanes", [16, 32, 64])
def test_a_lane_has_two_accesses_if_enough_threads_remain(lanes: int) -> None:
    def threads(num_columns: int) -> int:
        """Return the least number of threads with which each lane has two accesses."""
        panel = Panel(num_columns)

        def has_two(num_rows: int) -> bool:
            return launched(rows_of(7, num_rows), panel, lanes=lanes).loads == 2

        return first(has_two, range(1, 10**7)) * num_columns // 2

    usual = threads(8)
    for num_columns in (4, 16, 32, 24 * 4 // 3):
        assert threads(num_columns) == usual
    assert usual % lanes == 0
    # The widest tile needs fewer threads. All tiles count together, and a partly used one counts as a whole one.
    assert threads(64) == threads(128) < usual
    assert threads(33) * 40 / 33 == pytest.approx(usual, rel=0.001)


def test_lanes_with_one_access_and_with_two_have_the_same_tile() -> None:
    for num_columns in (4, 8, 16, 32):
        one, two = (launched(rows_of(7, n), Panel(num_columns)) for n in (10**3, 10**7))
        assert (one.loads, one.column_lanes) == (1, num_columns)
        assert (two.loads, two.column_lanes) == (2, num_columns // 2)


def test_lanes_of_a_tile_of_16_have_two_accesses_if_row_lengths_vary_and_most_rows_are_not_short() -> None:
    alike = rows_of(20, 2 * 10**4)
    differing = replace(alike, max_length=500, std_length=20.0)
    for num_columns in (8, 16, 32):
        assert launched(alike, Panel(num_columns)).loads == 1
        assert launched(differing, Panel(num_columns)).loads == (2 if num_columns >= 16 else 1)
    assert launched(differing, Panel(32), num_patterns=27).loads == 1  # the tile of row patterns is wider
    for short in (rows_of(5, 6 * 10**4), rows_of(20, 5000)):  # with short rows, and with few entries in all
        assert launched(replace(short, max_length=500, std_length=4.0), Panel(16)).loads == 1


def test_a_group_of_lanes_is_at_most_a_warp() -> None:
    few = rows_of(7, 10)
    assert [launched(few, Panel(64), lanes=lanes).column_lanes for lanes in (32, 64)] == [32, 64]
    assert [launched(EVEN, Panel(64), lanes=lanes).column_lanes for lanes in (16, 32, 64)] == [16, 32, 32]


def test_two_accesses_need_four_columns_and_values_small_enough_for_a_lane() -> None:
    assert [launched(EVEN, Panel(k)).loads for k in (1, 2, 4)] == [1, 1, 2]
    for pack, value_bytes in ((1, 4), (1, 8), (1, 16), (2, 4), (2, 8), (4, 4), (2, 16), (4, 8)):
        launch = launched(EVEN, Panel(64 * pack, pack), value_bytes=value_bytes)
        assert launch.loads == (2 if 2 * pack * value_bytes <= LANE_BYTES else 1)


# -------------------------------------------------------------------------------------------------------- row patterns


@pytest.mark.parametrize("num_patterns", [1, 27])
def test_row_patterns_use_narrower_tiles_and_lanes_with_two_accesses(num_patterns: int) -> None:
    for num_columns in (2, 4, 8, 16, 32, 33, 128):
        csr, table = (launched(EVEN, Panel(num_columns), num_patterns=n) for n in (0, num_patterns))
        assert table.tile <= csr.tile
        assert table.loads == 2
        assert table.column_lanes == min(csr.tile, 32) // 2
    assert launched(EVEN, Panel(1), num_patterns=num_patterns).tile == 1


@pytest.mark.parametrize("num_patterns", [1, 27])
def test_lanes_share_rows_of_row_patterns_only_to_fill_a_device(num_patterns: int) -> None:
    csr, table = (launched(rows_of(64), Panel(2), num_patterns=n).entry_lanes for n in (0, num_patterns))
    assert csr > table == 1
    few = rows_of(4, 2**13)
    assert [launched(few, Panel(2), num_patterns=n).entry_lanes for n in (0, num_patterns)] == [4, 4]


# -------------------------------------------------------------------------------------------------------- dense blocks


@LANES
@pytest.mark.parametrize("block", [2, 3, 6])
def test_lanes_of_blocks_share_columns_only_and_have_two_loads_if_enough_threads_remain(block: int, lanes: int) -> None:
    for num_columns in COLUMNS:
        many, few = (
            launched(rows_of(81, num_rows), Panel(num_columns), lanes=lanes, block=block) for num_rows in (10**8, 60)
        )
        assert many.entry_lanes == few.entry_lanes == few.loads == 1
        assert many.loads == (2 if num_columns > 1 else 1)
        assert many.column_lanes <= few.column_lanes <= lanes
        assert few.column_lanes >= min(num_columns, 8)


@LANES
def test_blocks_have_two_loads_from_a_number_of_threads_on(lanes: int) -> None:
    device_threads = 2**17
    for block, num_columns, threads in ((1, 2, 1), (2, 4, 2), (3, 8, 4), (2, 64, 32), (3, 33, 20), (2, 100, 64)):
        num_rows = block * -(-device_threads // threads)
        few, enough = (
            launched(rows_of(81, rows), Panel(num_columns), lanes=lanes, block=block)
            for rows in (num_rows - 1, num_rows)
        )
        assert (few.loads, enough.loads) == (1, 2)
        assert few.tile == min(enough.tile, lanes)
        assert isinstance(enough.column_lanes, int)


def test_blocks_have_two_loads_only_of_values_that_are_small_enough_for_a_lane() -> None:
    for load_bytes in (LANE_BYTES // 4, LANE_BYTES // 2, LANE_BYTES, 2 * LANE_BYTES):
        launch = launched(rows_of(81), Panel(16), value_bytes=load_bytes, block=3)
        assert launch.loads == (2 if load_bytes <= LANE_BYTES / 2 else 1)


def test_a_plan_names_the_arrays_that_the_product_reads() -> None:
    for options, reads in (
        ({}, "CSR"),
        ({"values": "float32"}, "CSR, float32"),
        ({"num_patterns": 1}, "1 row patterns"),
        ({"block": 3, "values": "float64"}, "3x3 blocks, float64"),
        ({"values": "float32", "num_patterns": 27}, "27 row patterns"),
    ):
        plan = planned(EVEN, Panel(8), **options)
        assert plan.reads == reads
        assert f" {reads} " in str(plan).splitlines()[0]
        first, second, tiles = str(replace(plan, on_cpu=True)).splitlines()
        assert f" {reads} " in first and first.endswith("each thread multiplies its rows with all columns")
        assert second == f"on a GPU: {plan.reason}" and tiles.startswith("tiles of")


# -------------------------------------------------------------------------------------------------------- column-major


@LANES
@pytest.mark.parametrize("value_bytes", [4, 8, 16])
def test_lanes_of_a_column_major_x_have_as_many_accesses_as_allowed(lanes: int, value_bytes: int) -> None:
    most = min(4, LANE_BYTES // value_bytes)
    for num_columns in COLUMNS:
        for stats in (EVEN, replace(EVEN, num_rows=10), LONG):
            launch = launched(stats, Panel(num_columns, 1, True), lanes=lanes, value_bytes=value_bytes)
            assert launch.column_lanes <= 2
            if num_columns >= most:
                assert launch.loads == most
                assert launch.column_lanes == (2 if num_columns > most else 1)
            else:
                assert num_columns <= launch.loads < 2 * num_columns
                assert launch.column_lanes == 1


# ------------------------------------------------------------------------------------------------- lanes share entries


@LANES
@pytest.mark.parametrize("panel", [Panel(1), Panel(2), Panel(16), Panel(8, 1, True)], ids=str)
def test_twice_as_many_lanes_share_a_row_of_twice_the_length(panel: Panel, lanes: int) -> None:
    def shared(length: int) -> int:
        launch = launched(rows_of(length), panel, lanes=lanes)
        assert launch.column_lanes == columns
        return launch.entry_lanes

    columns = launched(EVEN, panel, lanes=lanes).column_lanes
    most = min(lanes // columns, 16)
    assert [shared(length) for length in (0, 1, 4)] == [1, 1, 1]
    assert shared(10**6) == most
    if most > 2:
        # Each lane has several entries, so more lanes for columns require longer rows.
        longer = first(lambda length: shared(length) > 1, range(1, 10**6))
        assert longer >= 4 * columns
        for power in range(1, most.bit_length()):
            assert shared((longer << power) // 2) == 1 << power
            assert shared((longer << power) // 2 - 1) == 1 << power - 1


@pytest.mark.parametrize("num_columns", [1, 4, 16])
def test_few_rows_get_enough_lanes_to_fill_a_device(num_columns: int) -> None:
    def threads(num_rows: int) -> int:
        launch = launched(rows_of(12, num_rows), Panel(num_columns), lanes=64, value_bytes=16)
        tiles = -(-num_columns // launch.tile)
        return num_rows * tiles * launch.column_lanes * launch.entry_lanes

    assert threads(2**16 // num_columns) == threads(2**15 // num_columns) > 2**16
    # At most as many lanes as a row has entries, rounded down to a power of two; one lane if there are enough rows.
    assert [launched(rows_of(n, 1), Panel(1), lanes=64).entry_lanes for n in (0, 1, 3, 12)] == [1, 1, 2, 8]
    assert launched(rows_of(7, 10**7), Panel(num_columns), lanes=64).entry_lanes == 1


@pytest.mark.parametrize(
    ("num_rows", "tile", "tiles"), [(256, Panel(64), Panel(256)), (4096, Panel(8, 1, True), Panel(32, 1, True))]
)
def test_with_four_times_the_tiles_a_quarter_of_the_lanes_share_a_row(num_rows: int, tile: Panel, tiles: Panel) -> None:
    one, four = (launched(rows_of(16, num_rows), panel, lanes=1024) for panel in (tile, tiles))
    assert one.tile == four.tile
    assert one.entry_lanes == 4 * four.entry_lanes > 4


def test_a_partly_used_tile_counts_as_a_whole_one() -> None:
    for num_rows in range(500, 4000, 100):
        five_tiles = (launched(rows_of(16, num_rows), Panel(k, 1, True)).entry_lanes for k in (33, 36, 40))
        assert len(set(five_tiles)) == 1


def test_a_matrix_without_rows_or_entries_has_a_launch() -> None:
    nothing = RowStats(0, 0, 0, 0, 0, 0.0, 0.0, 0, 0)
    for stats in (nothing, replace(nothing, num_rows=10**6, num_empty=10**6)):
        assert launched(stats, Panel(4)).entry_lanes == 1


# ----------------------------------------------------------------------------------------- rows that are cut in chunks


def long_length(stats: RowStats, panel: Panel, lanes: int = 32) -> int:
    return launched(stats, panel, lanes=lanes).long_length


def test_only_very_long_rows_are_cut_if_all_rows_are_of_similar_and_moderate_length() -> None:
    even = rows_of(7)
    assert long_length(even, Panel(16)) == long_length(replace(even, max_length=14), Panel(16))
    assert long_length(replace(even, max_length=15), Panel(16)) < long_length(even, Panel(16))
    typical = first(lambda n: long_length(rows_of(n), Panel(16)) < long_length(even, Panel(16)), range(7, 10**4))
    assert 64 < typical < long_length(even, Panel(16))
    assert long_length(rows_of(10**6), Panel(16)) == long_length(rows_of(typical), Panel(16))


@LANES
def test_uneven_rows_are_cut_sooner_if_one_lane_reads_them_and_threads_are_few(lanes: int) -> None:
    uneven = replace(rows_of(7, num_rows=10**5), max_length=10**5)
    shared = long_length(replace(rows_of(400), max_length=10**5), Panel(1), lanes)
    assert launched(uneven, Panel(4), lanes=lanes).entry_lanes == 1
    assert long_length(uneven, Panel(4), lanes) < shared < long_length(rows_of(7), Panel(4), lanes)
    assert long_length(replace(rows_of(7), max_length=10**5), Panel(4), lanes) == shared


@LANES
def test_with_enough_threads_one_lane_reads_all_entries_of_an_uneven_row(lanes: int) -> None:
    """The number of threads is the product of the numbers of rows, of tiles, and of lanes of a tile."""

    def uneven(length: int, num_rows: int) -> RowStats:
        return replace(rows_of(length, num_rows), max_length=10**5)

    limits = set()
    for num_columns in (8, 16, 32, 64):

        def is_one(num_rows: int, panel: Panel = Panel(num_columns)) -> bool:
            return launched(uneven(400, num_rows), panel, lanes=lanes).entry_lanes == 1

        rows = first(is_one, range(10**4, 10**7))
        one = launched(uneven(400, rows), Panel(num_columns), lanes=lanes)
        limits.add(rows * one.column_lanes * -(-num_columns // one.tile))
        assert is_one(10 * rows) and not is_one(rows // 4)
        assert long_length(uneven(400, rows), Panel(num_columns), lanes) == 64
        assert long_length(uneven(400, rows - 1), Panel(num_columns), lanes) == 64
    assert len(limits) == 1
    # Lanes do not share short rows: with fewer threads, these are cut sooner.
    rows = limits.pop() // launched(uneven(7, 10**6), Panel(8), lanes=lanes).column_lanes
    assert long_length(uneven(7, rows - 1), Panel(8), lanes) == 32
    assert long_length(uneven(7, rows), Panel(8), lanes) == 64


def test_long_uneven_rows_have_two_loads_from_eight_columns_on() -> None:
    stats = replace(rows_of(40), max_length=10**5)
    assert [launched(stats, Panel(k)).loads for k in (2, 4, 8, 16, 64)] == [1, 1, 2, 2, 2]


@LANES
def test_uneven_rows_of_csr_are_taken_by_length_if_x_is_row_major(lanes: int) -> None:
    uneven = replace(rows_of(40), max_length=10**5)
    assert not PanelLaunch(1, 1, 8).by_length
    assert not launched(rows_of(40), Panel(8), lanes=lanes).by_length
    assert launched(uneven, Panel(8), lanes=lanes).by_length
    assert launched(uneven, Panel(64, 2), lanes=lanes).entry_lanes == 1  # neighbours read about as many entries
    for panel, options in ((Panel(8, 1, True), {}), (Panel(8), {"block": 3}), (Panel(8), {"num_patterns": 7})):
        assert not launched(uneven, panel, lanes=lanes, **options).by_length


@LANES
def test_tiles_are_narrower_for_long_uneven_rows(lanes: int) -> None:
    uneven = replace(rows_of(40), max_length=10**5)
    assert launched(rows_of(40), Panel(128, 2), lanes=lanes).tile == 128
    assert launched(uneven, Panel(128, 2), lanes=lanes).tile == 32
    assert launched(replace(uneven, nnz=10**5), Panel(128, 2), lanes=lanes).tile == 128


# ---------------------------------------------------------------------------------------------------------- the reason


def test_the_reason_mentions_accesses_and_rows() -> None:
    few, uneven = rows_of(7, num_rows=10), replace(EVEN, max_length=10**5)
    assert planned(EVEN, Panel(8)).reason == "2 loads per thread; row lengths are similar"
    assert planned(few, Panel(8)).reason == "one load per thread; row lengths are similar"
    assert planned(uneven, Panel(8)).reason.endswith("; row lengths vary")


def test_a_plan_stores_its_inputs_and_prints_its_launch() -> None:
    panel = Panel(24, 2)
    plan = planned(LONG, panel)
    assert (plan.stats, plan.panel) == (LONG, panel)
    with pytest.raises(FrozenInstanceError):
        plan.reason = ""
    assert plan.launch == launch_for(LONG, panel, lanes=32, value_bytes=8)
    head, tiles = str(plan).splitlines()
    assert plan.reason in head
    assert ("row-major" in head, "column-major" in head) == (True, False)
    assert "column-major" in str(planned(LONG, Panel(24, 1, True))).splitlines()[0]
    launch = plan.launch
    assert tiles.split(", ") == [
        f"tiles of {launch.tile} columns: {launch.column_lanes} lanes with {launch.loads} loads of 2",
        f"{launch.entry_lanes} lanes share a row's entries",
        f"rows of more than {launch.long_length} entries are cut into chunks",
    ]


def test_lanes_and_bytes_must_be_passed_by_keyword() -> None:
    with pytest.raises(TypeError, match="positional"):
        plan_columns(EVEN, Panel(8), 32, 8)  # type: ignore[misc]


@pytest.mark.parametrize("model", [GPU_MODEL, CPU_MODEL])
def test_bytes_of_the_matrix_and_rows_of_x_take_time_that_threads_share_in_part(model: MachineModel) -> None:
    both, of_bytes, of_reads = (seconds_per_columns(model, *reads, 8) for reads in ((12e6, 1e6), (12e6, 0), (0, 1e6)))
    assert both == pytest.approx(of_bytes + of_reads)
    assert of_bytes == pytest.approx(12e6 * model.column_byte)
    assert seconds_per_columns(model, 12e6, 1e6, 8, threads=4) == pytest.approx(of_bytes + of_reads / 4)
    assert seconds_per_columns(model, 0, 1e6, 16) == pytest.approx(2 * of_reads)
    # CSR of 3 x 3 blocks reads 12 bytes for each value and a row of X for each entry: both are less with blocks.
    assert 1.3 < both / seconds_per_columns(model, 8.5e6, 1e6 / 3, 8) < 3
