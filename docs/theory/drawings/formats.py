"""The drawings of formats.rst: one small matrix in each storage format."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from drawings.sheet import DARK, FILLS, GREY, LIGHT, ORANGE, WHITE, arrow, cell, cells, drawing, note, sheet

# The matrix of formats.rst: 8 rows a to h, whose blocks of 2 x 2 are full. The columns of each row:
BLOCK_COLUMNS = ((0,), (0, 1), (0, 2), (3,))
ROWS = "abcdefgh"
COLUMNS = {row: [2 * b + c for b in BLOCK_COLUMNS[i // 2] for c in (0, 1)] for i, row in enumerate(ROWS)}
ENTRIES = [(row, column) for row in ROWS for column in COLUMNS[row]]


def row_fill(row: str) -> str:
    """Return the colour of a row of the matrix."""
    return FILLS[ROWS.index(row) % len(FILLS)]


@drawing
def csr() -> Figure:
    """The matrix, and its arrays in CSR."""
    figure, axes = sheet(5.35)
    size, left, top = 0.27, 1.1, 0.4
    note(axes, left + 4 * size, 0.12, "columns", "center")
    note(axes, left - 0.75, top + 4 * size, "rows", "center")
    for i, row in enumerate(ROWS):
        note(axes, left + (i + 0.5) * size, 0.29, i, "center")
        note(axes, left - 0.25, top + (i + 0.5) * size, f"{row}  {i}", "center")
        for j in range(8):
            is_entry = j in COLUMNS[row]
            corner = left + j * size, top + i * size
            cell(axes, corner, (size, size), f"{row}{j}" if is_entry else "", row_fill(row) if is_entry else WHITE)
    starts = np.cumsum([0, *(len(COLUMNS[row]) for row in ROWS)])
    note(axes, 0.2, 2.85, "indptr: where each row begins")
    cells(axes, (0.2, 2.97), (0.3, size), starts.tolist())
    for half, begin in enumerate((0, 12)):
        part, top = ENTRIES[begin : begin + 12], 3.6 + 0.9 * half
        note(axes, 0.2, top - 0.13, f"indices and data: entries {begin} to {begin + 11}")
        cells(axes, (0.2, top), (0.3, size), [column for _, column in part])
        cells(axes, (0.2, top + size), (0.3, size), [f"{r}{c}" for r, c in part], [row_fill(r) for r, _ in part])
    return figure


@drawing
def schedules() -> Figure:
    """Which thread multiplies which entry, in the two schedules of CSR."""
    figure, axes = sheet(2.15)
    width, left = 0.15, 0.2
    of_row = [ROWS.index(row) for row, _ in ENTRIES]
    place = [COLUMNS[row].index(column) for row, column in ENTRIES]
    rows = {
        "scalar: thread i has row i": of_row,
        "vector: two threads for each row": [(2 * i + p % 2) % 10 for i, p in zip(of_row, place, strict=True)],
    }
    for panel, (title, threads) in enumerate(rows.items()):
        top = 0.5 + 1.05 * panel
        note(axes, left, top - 0.33, title, weight="bold")
        for i, row in enumerate(ROWS):
            begin, end = of_row.index(i), 24 - of_row[::-1].index(i)
            note(axes, left + (begin + end) / 2 * width, top - 0.11, row, "center", GREY)
            axes.plot([left + begin * width] * 2, [top - 0.16, top + 0.3], color=DARK, linewidth=1.6)
        cells(axes, (left, top), (width, 0.26), threads, [FILLS[t % 4] for t in threads])
    note(axes, left, 0.92, "the number is that of the thread")
    note(axes, left, 1.97, "threads 10 to 15 are written 0 to 5")
    return figure


def padded(rows: str, width: int) -> list[list[str | None]]:
    """Return what stands at position j of each row, for j up to the width: an entry, or None for padding."""
    return [[f"{r}{COLUMNS[r][j]}" if j < len(COLUMNS[r]) else None for r in rows] for j in range(width)]


@drawing
def ellpack() -> Figure:
    """ELLPACK: one thread for each row, entries column by column."""
    figure, axes = sheet(2.2)
    for i, row in enumerate(ROWS):
        note(axes, 0.92 + 0.35 * i, 0.15, row, "center", weight="bold")
        note(axes, 0.92 + 0.35 * i, 0.35, f"t{i}", "center", GREY)
    for j, line in enumerate(padded(ROWS, 4)):
        note(axes, 0.1, 0.65 + 0.3 * j, f"entry {j}")
        cells(axes, (0.75, 0.5 + 0.3 * j), (0.35, 0.3), line, [row_fill(row) for row in ROWS])
    arrow(axes, (0.75, 1.82), (3.55, 1.82))
    note(axes, 0.75, 2.0, "memory: entry 0 of all rows, then entry 1 …")
    return figure


@drawing
def slices() -> Figure:
    """Blocked ELLPACK: slices of four rows, after sorting by length."""
    figure, axes = sheet(2.75)
    for number, (rows, width) in enumerate((("cdef", 4), ("abgh", 2))):
        left = 0.75 + 1.75 * number
        note(axes, left + 0.7, 0.15, f"slice {number}", "center", weight="bold")
        for i, row in enumerate(rows):
            note(axes, left + 0.175 + 0.35 * i, 0.38, row, "center")
        for j, line in enumerate(padded(rows, width)):
            cells(axes, (left, 0.5 + 0.3 * j), (0.35, 0.3), line, [row_fill(row) for row in rows])
    for j in range(4):
        note(axes, 0.1, 0.65 + 0.3 * j, f"entry {j}")
    note(axes, 0.1, 1.95, "slice_offsets: 0, 16, 24")
    note(axes, 0.1, 2.15, "rows: c d e f, a b g h (their order after sorting)")
    note(axes, 0.1, 2.35, "24 positions for 24 entries; in natural order it")
    note(axes, 0.1, 2.53, "would be 32, because each slice has a row of four")
    return figure


@drawing
def patterns() -> Figure:
    """Row patterns: a code for each row, and the offsets of each pattern."""
    figure, axes = sheet(3.3)
    found: dict[tuple[int, ...], int] = {}
    codes = [found.setdefault(tuple(c - i for c in COLUMNS[row]), len(found)) for i, row in enumerate(ROWS)]
    note(axes, 0.2, 0.15, "codes: the pattern of each row")
    cells(axes, (0.2, 0.5), (0.35, 0.27), codes, [FILLS[code % 4] for code in codes])
    for i, row in enumerate(ROWS):
        note(axes, 0.375 + 0.35 * i, 0.37, row, "center", GREY)
    note(axes, 0.2, 1.0, "patterns: column minus row")
    for offsets, code in found.items():
        top = 1.15 + 0.3 * code
        note(axes, 0.2, top + 0.13, f"pattern {code}")
        cells(axes, (1.0, top), (0.35, 0.26), [f"{o:+d}" if o else 0 for o in offsets], [FILLS[code % 4]] * 4)
        users = ", ".join(row for row, c in zip(ROWS, codes, strict=True) if c == code)
        note(axes, 2.55, top + 0.13, f"rows {users}" if len(users) > 1 else f"row {users}")
    note(axes, 0.2, 3.12, "On a grid, nearly all rows share one pattern.")
    return figure


@drawing
def blocks() -> Figure:
    """Dense blocks: the blocks of the matrix, and the order of their values."""
    figure, axes = sheet(4.6)
    left, top, size = 1.25, 0.35, 0.38
    for i in range(4):
        note(axes, left + (i + 0.5) * size, 0.18, i, "center")
        note(axes, left - 0.55, top + (i + 0.5) * size, f"rows {ROWS[2 * i]}, {ROWS[2 * i + 1]}", "center")
        for j in range(4):
            is_block = j in BLOCK_COLUMNS[i]
            cell(
                axes, (left + j * size, top + i * size), (size, size), "2×2" * is_block, FILLS[i] if is_block else WHITE
            )
    note(axes, 0.2, 2.15, "one slice of four block rows, a thread for each row:")
    fills = [FILLS[i // 2] for i in range(8)]
    for i, row in enumerate(ROWS):
        note(axes, 1.17 + 0.34 * i, 2.35, row, "center", weight="bold")
    for step in range(2):
        top = 2.5 + 0.95 * step
        numbers = [b[step] if step < len(b) else None for b in BLOCK_COLUMNS]
        note(axes, 0.1, top + 0.13, "block col.")
        cells(axes, (1.0, top), (0.68, 0.26), numbers, FILLS)
        for c in range(2):
            line = [
                None if numbers[i // 2] is None else f"{row}{2 * numbers[i // 2] + c}" for i, row in enumerate(ROWS)
            ]
            note(axes, 0.1, top + 0.42 + 0.28 * c, f"step {step}, {c}")
            cells(axes, (1.0, top + 0.29 + 0.28 * c), (0.34, 0.26), line, fills)
    note(axes, 0.1, 4.45, "6 block columns in place of 24 columns")
    return figure


@drawing
def hubs() -> Figure:
    """Hub columns: frequent columns have numbers of two bytes, and their elements of x an array of their own."""
    figure, axes = sheet(3.75)
    note(axes, 0.2, 0.15, "x: columns 0 and 1 have 6 entries each")
    cells(axes, (0.2, 0.28), (0.35, 0.27), [f"x{j}" for j in range(8)], [ORANGE] * 2 + [WHITE] * 6)
    arrow(axes, (0.55, 0.58), (0.55, 0.86))
    note(axes, 0.7, 0.72, "gathered in each product")
    cells(axes, (0.2, 0.9), (0.35, 0.27), ["x0", "x1"], [ORANGE] * 2)
    note(axes, 1.05, 1.03, "frequent elements, in shared memory")
    note(axes, 1.45, 1.45, "frequent: uint16", "center", weight="bold")
    note(axes, 3.0, 1.45, "rare: int32", "center", weight="bold")
    for i, row in enumerate("cdefabgh"):
        top = 1.6 + 0.22 * i + 0.12 * (i > 3)
        note(axes, 0.2, top + 0.1, f"row {row}")
        frequent = [f"{row}{c}" for c in COLUMNS[row] if c < 2] or [None, None]
        rare = [f"{row}{c}" for c in COLUMNS[row] if c > 1]
        cells(axes, (1.0, top), (0.45, 0.22), frequent, [ORANGE] * 2)
        cells(axes, (2.55, top), (0.45, 0.22), rare or ([None, None] if row in "ab" else []), [LIGHT] * 2)
    note(axes, 0.2, 3.62, "two slices of four lanes, one lane for each row")
    return figure


@drawing
def encodings() -> Figure:
    """How columns and values are compressed."""
    figure, axes = sheet(3.35)
    columns = [70000, 70001, 70004, 70009]
    note(axes, 0.2, 0.15, "columns of a run: 4 bytes each", weight="bold")
    cells(axes, (0.2, 0.28), (0.85, 0.27), columns, [LIGHT] * 4)
    arrow(axes, (0.6, 0.6), (0.6, 0.85))
    note(axes, 0.8, 0.72, "one base, and a byte for each position")
    cell(axes, (0.2, 0.9), (0.85, 0.27), 70000, ORANGE)
    cells(axes, (1.25, 0.9), (0.35, 0.27), [c - columns[0] for c in columns], [LIGHT] * 4)
    note(axes, 0.2, 1.55, "values: 8 bytes each", weight="bold")
    cells(axes, (0.2, 1.68), (0.58, 0.27), ["6.0", "-1.0", "-1.0", "6.0", "-1.0", "-1.0"], [LIGHT] * 6)
    arrow(axes, (0.6, 2.0), (0.6, 2.25))
    note(axes, 0.8, 2.12, "a table, and a byte for each position")
    cells(axes, (0.2, 2.3), (0.58, 0.27), ["-1.0", "6.0"], [ORANGE] * 2)
    cells(axes, (1.56, 2.3), (0.35, 0.27), [1, 0, 0, 1, 0, 0], [LIGHT] * 6)
    note(axes, 0.2, 2.9, "or float32 in place of float64, where every")
    note(axes, 0.2, 3.1, "value comes back with the same bits")
    return figure
