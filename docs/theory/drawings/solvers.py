"""The drawings of solvers.rst."""

from __future__ import annotations

from matplotlib.figure import Figure

from drawings.sheet import BLUE, DARK, GREY, LIGHT, ORANGE, PALE, WHITE, arrow, cell, drawing, note, sheet
from gsparse.linalg.krylov import cg


@drawing
def cg_passes() -> Figure:
    """The vectors that each pass of conjugate gradients reads and writes, from the program itself."""
    figure, axes = sheet(2.95)
    steps = {step.name: step for step in cg.PROGRAM.steps}
    names, width = ("curvature", "update", "direction"), 0.95
    total = 0
    for number, vector in enumerate("xrpq"):
        note(axes, 0.4, 0.79 + 0.36 * number, vector, "center", weight="bold")
    for place, name in enumerate(names):
        step, left = steps[name], 0.75 + width * place
        note(axes, left + width / 2, 0.2, name, "center", weight="bold")
        text = {"curvature": "q = A·p, ⟨p, q⟩", "update": "r -= α·q", "direction": "x, p"}[name]
        note(axes, left + width / 2, 0.42, text, "center", GREY)
        count = 0
        for number, vector in enumerate("xrpq"):
            reads = vector in step.reads("before", "each", "sums")
            writes = vector in step.targets("each")
            count += reads + writes
            text = " and ".join(["read"] * reads + ["write"] * writes).replace("read and write", "read, write")
            fill = ORANGE if writes else LIGHT if reads else WHITE
            cell(axes, (left, 0.6 + 0.36 * number), (width, 0.36), text, fill)
        total += count
        note(axes, left + width / 2, 2.2, f"{count} vectors", "center")
    note(axes, 0.2, 2.5, f"{total} vectors in all; with ⟨p, q⟩ computed by the")
    note(axes, 0.2, 2.72, f"kernel of the product, {total - 2}")
    return figure


@drawing
def time_lines() -> Figure:
    """What the host and the device do: single launches, CUDA graphs, one kernel."""
    figure, axes = sheet(4.0)
    note(axes, 0.2, 0.15, "single launches: the device waits for the host", weight="bold")
    for k in range(6):
        cell(axes, (0.75 + 0.5 * k, 0.3), (0.42, 0.24), "", ORANGE)
        cell(axes, (0.97 + 0.5 * k, 0.58), (0.2, 0.24), "", BLUE)
    note(axes, 0.2, 1.3, "CUDA graphs: the host reads the scalars later", weight="bold")
    cell(axes, (2.27, 1.45), (0.75, 0.24), "read 1", PALE)
    for k in range(2):
        cell(axes, (0.75 + 0.25 * k, 1.45), (0.2, 0.24), "", ORANGE)
        for j in range(6):
            cell(axes, (0.85 + 1.4 * k + 0.23 * j, 1.73), (0.2, 0.24), "", BLUE)
    note(axes, 0.2, 2.45, "one kernel: blocks exchange what they need", weight="bold")
    cell(axes, (0.75, 2.6), (0.2, 0.24), "", ORANGE)
    cell(axes, (0.85, 2.88), (2.1, 0.24), "", BLUE)
    for j in range(11):
        axes.plot([1.0 + 0.18 * j] * 2, [2.88, 3.12], color=DARK, linewidth=1.6)
    for top in (0.42, 1.57, 2.72):
        note(axes, 0.15, top, "host")
        note(axes, 0.15, top + 0.28, "device")
        arrow(axes, (0.75, top + 0.5), (3.85, top + 0.5), GREY)
    cell(axes, (0.2, 3.5), (0.2, 0.2), "", ORANGE)
    note(axes, 0.48, 3.6, "launch")
    cell(axes, (1.25, 3.5), (0.2, 0.2), "", BLUE)
    note(axes, 1.53, 3.6, "a kernel")
    axes.plot([2.5, 2.5], [3.5, 3.7], color=DARK, linewidth=1.6)
    note(axes, 2.6, 3.6, "exchange")
    note(axes, 0.2, 3.85, "time goes to the right; lengths are not to scale")
    return figure


@drawing
def reductions() -> Figure:
    """Where the ranks wait for each other in an iteration of conjugate gradients."""
    figure, axes = sheet(3.5)
    plain = (("A·p", 0.75), ("⟨p,q⟩", 0), ("update", 0.65), ("⟨r,r⟩", 0), ("direction", 0.8))
    single = (("A·r", 0.75), ("weigh", 0.55), ("2 sums", 0), ("advance", 1.1))
    for top, title, parts in ((0.2, "plain: two sums over ranks", plain), (1.85, "single reduction: one sum", single)):
        note(axes, 0.2, top, title, weight="bold")
        for rank in range(2):
            note(axes, 0.15, top + 0.38 + 0.36 * rank, f"rank {rank}")
        left = 0.75
        for text, length in parts:
            if length:
                for rank in range(2):
                    cell(axes, (left, top + 0.24 + 0.36 * rank), (length, 0.28), text, LIGHT)
                left += length + 0.03
            else:
                cell(axes, (left, top + 0.18), (0.14, 0.76), "", ORANGE)
                note(axes, left + 0.07, top + 1.07, text, "center")
                left += 0.17
    note(axes, 0.2, 3.3, "orange: all ranks wait until the sum is complete")
    return figure
