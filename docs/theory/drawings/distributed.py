"""The drawings of distributed.rst."""

from __future__ import annotations

from matplotlib.figure import Figure

from drawings.sheet import BLUE, DARK, GREY, LIGHT, ORANGE, PALE, WHITE, arrow, cell, cells, drawing, note, sheet

_RANKS = 3
# The rows of the matrix of `row_blocks`: the columns of their entries, in blocks of four columns for each rank.
_ENTRIES = ((0, 1, 5), (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 5), (0, 4, 5, 6), (5, 6, 7, 9), (6, 7, 8), (7, 8, 9),
            (6, 8, 9, 10), (9, 10, 11), (10, 11))  # fmt: skip


@drawing
def row_blocks() -> Figure:
    """The rows of three ranks: diagonal blocks, off-diagonal blocks, and the ghosts of rank 1."""
    figure, axes = sheet(4.6)
    size, left, top = 0.24, 0.95, 0.55
    for rank in range(_RANKS):
        note(axes, left + (4 * rank + 2) * size, 0.18, f"rank {rank}", "center", weight="bold")
        note(axes, 0.15, top + (4 * rank + 2) * size, f"rank {rank}", weight="bold")
    ghosts = sorted({c for row in _ENTRIES[4:8] for c in row if c // 4 != 1})
    for column in range(12):
        note(axes, left + (column + 0.5) * size, 0.42, column, "center", DARK if column in ghosts else GREY)
    for i, columns in enumerate(_ENTRIES):
        for j in range(12):
            is_own = i // 4 == j // 4
            fill = (BLUE if is_own else ORANGE) if j in columns else (PALE if is_own else WHITE)
            cell(
                axes,
                (left + j * size, top + i * size),
                (size, size),
                "",
                fill if fill != WHITE else PALE if is_own else WHITE,
            )
    for rank in range(1, _RANKS):
        axes.plot([left, left + 12 * size], [top + 4 * rank * size] * 2, color="black", linewidth=2.2)
        axes.plot([left + 4 * rank * size] * 2, [top, top + 12 * size], color="black", linewidth=2.2)
    for column in ghosts:
        arrow(axes, (left + (column + 0.5) * size, 3.75), (left + (column + 0.5) * size, 3.47))
    note(axes, 0.15, 3.87, f"ghosts of rank 1: {', '.join(map(str, ghosts[:-1]))} and {ghosts[-1]}")
    for x, fill, text in ((0.15, BLUE, "diagonal block"), (1.75, ORANGE, "off-diagonal block")):
        cell(axes, (x, 4.08), (0.18, 0.18), "", fill)
        note(axes, x + 0.25, 4.17, text)
    note(axes, 0.15, 4.43, "The rows and the columns belong to the same ranks.")
    return figure


@drawing
def overlap() -> Figure:
    """The time line of a product on two ranks."""
    figure, axes = sheet(3.05)
    for rank in range(2):
        top = 0.3 + 0.95 * rank
        note(axes, 0.1, top + 0.13, f"rank {rank}", weight="bold")
        cell(axes, (0.75, top), (0.5, 0.28), "gather", LIGHT)
        cell(axes, (1.27, top), (1.35 - 0.15 * rank, 0.28), "diagonal block", BLUE)
        cell(axes, (2.64 - 0.15 * rank, top), (0.62, 0.28), "off-diag.", ORANGE)
        cell(axes, (3.28 - 0.15 * rank, top), (0.4, 0.28), "add", LIGHT)
        cell(axes, (1.27, top + 0.32), (0.95, 0.26), "messages", PALE)
        axes.plot([2.22] * 2, [top + 0.3, top + 0.62], color=DARK, linewidth=2)
    arrow(axes, (0.75, 2.2), (3.85, 2.2), GREY)
    note(axes, 3.85, 2.35, "time", "right")
    note(axes, 0.1, 2.35, "dark line: the ghosts have arrived")
    note(axes, 0.1, 2.65, "If the messages take longer than the diagonal block,")
    note(axes, 0.1, 2.87, "the rank waits for them before the off-diagonal block.")
    return figure


@drawing
def rank_levels() -> Figure:
    """The levels of multigrid over four ranks."""
    figure, axes = sheet(2.95)
    for rank in range(4):
        note(axes, 1.35 + 0.7 * rank, 0.15, f"rank {rank}", "center", weight="bold")
    for level, heights in enumerate((0.5, 0.36, 0.26, 0.18)):
        top = (0.32, 0.9, 1.34, 1.75)[level]
        note(axes, 0.1, top + heights / 2, f"level {level}")
        for rank in range(4):
            if level < 2:
                cell(axes, (1.0 + 0.7 * rank, top), (0.7, heights), "rows" if level == 0 else "", BLUE)
            elif level == 2 and rank % 2 == 0:
                cell(axes, (1.0 + 0.7 * rank, top), (0.7, heights), "", BLUE)
            elif level == 3:
                cell(axes, (1.03 + 0.7 * rank, top), (0.64, heights + 0.04), "all", ORANGE)
    for y, fill, text in ((2.2, BLUE, "rows of the level are divided among ranks"),
                          (2.45, ORANGE, "every rank has the whole level")):  # fmt: skip
        cell(axes, (0.1, y - 0.09), (0.18, 0.18), "", fill)
        note(axes, 0.38, y, text)
    note(axes, 0.1, 2.75, "level 2 has few rows: two ranks hold them")
    return figure


@drawing
def mailbox() -> Figure:
    """A message in a mailbox: words of 32 bits of data and a stamp."""
    figure, axes = sheet(2.6)
    note(axes, 0.1, 0.15, "memory of rank 1: the box of rank 0", weight="bold")
    for half, (title, stamp) in enumerate((("even messages", 4), ("odd messages", 5))):
        left = 0.75 + 1.65 * half
        note(axes, left + 0.75, 0.42, title, "center")
        cells(axes, (left, 0.55), (0.5, 0.28), ["count", "data", "data"], [LIGHT] * 3)
        cells(axes, (left, 0.83), (0.5, 0.28), [stamp] * 3, [ORANGE] * 3)
    note(axes, 0.1, 0.69, "32 bits")
    note(axes, 0.1, 0.97, "stamp")
    arrow(axes, (1.5, 1.55), (1.5, 1.15))
    note(axes, 1.6, 1.4, "rank 0 writes whole words of 64 bits")
    note(axes, 0.1, 1.85, "Rank 1 reads a word again until its stamp is the")
    note(axes, 0.1, 2.07, "number of the message that it waits for. So words may")
    note(axes, 0.1, 2.29, "arrive in any order, and no flag is needed.")
    return figure
