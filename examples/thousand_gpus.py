"""Predict the time of CG on many GPUs: an iteration on the 7-point problem, modelled from runs on a few GPUs.

A model of the time of an iteration (memory traffic, ghosts of the neighbours, two all-reduces) is fitted to measured
runs. It then predicts the time on up to 1024 GPUs, with eight on each host: with 8 million rows for each GPU (weak
scaling), and with 64 million and a billion rows in all (strong scaling). The rows are divided in two ways: into slabs,
as consecutive rows are, and into boxes, which resemble the parts that METIS finds. The constants of the links between
hosts are assumed and not measured, until there are records of several hosts. `gsparse.bench.scaling_model` describes
what else the model leaves out.

    python examples/thousand_gpus.py
    python examples/thousand_gpus.py --records examples/measured_cg_h200.json
    python examples/thousand_gpus.py --records my_runs.json --plot scaling.png
"""

from __future__ import annotations

import argparse
import json
import math
import textwrap
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gsparse.bench.scaling_model import CostModel, RankWork, fit

WORLD_SIZES = [2**k for k in range(11)]
ENTRIES_PER_ROW = 7

# The number of rows of the whole problem, by the number of GPUs.
SCENARIOS: dict[str, Callable[[int], float]] = {
    "8 million rows per GPU (weak scaling)": lambda world_size: 8e6 * world_size,
    "64 million rows (strong scaling)": lambda world_size: 64e6,
    "a billion rows (strong scaling)": lambda world_size: 1e9,
}


def slabs(num_rows: float, world_size: int) -> RankWork:
    """Return the work of a rank if a cube is cut into slabs."""
    return inner_block(num_rows, (1, 1, world_size))


def boxes(num_rows: float, world_size: int) -> RankWork:
    """Return the work of a rank if a cube is cut into equal boxes, as close to cubes as a power of two allows."""
    doublings = world_size.bit_length() - 1
    return inner_block(num_rows, tuple(2 ** ((doublings + axis) // 3) for axis in range(3)))


def inner_block(num_rows: float, cuts: tuple[int, ...]) -> RankWork:
    """Return the work of the block with the most neighbours.

    A slab that is thinner than one plane of points has more neighbours than are counted here.
    """
    world_size = math.prod(cuts)
    rows = num_rows / world_size
    neighbours = [min(cut - 1, 2) for cut in cuts]
    faces = [min(rows / (num_rows ** (1 / 3) / cut), rows) for cut in cuts]
    ghosts = sum(count * face for count, face in zip(neighbours, faces, strict=True))
    return RankWork(rows, ENTRIES_PER_ROW * rows, world_size, ghosts, sum(neighbours))


CUTS = {"slabs": slabs, "boxes": boxes}


def efficiency(model: CostModel, num_rows: float, work: RankWork) -> float:
    """Return the ideal time over the modelled one.

    The ideal time is that of one GPU with enough memory for all rows, divided by the number of GPUs.
    """
    single_gpu = model.seconds(RankWork(num_rows, ENTRIES_PER_ROW * num_rows))
    return single_gpu / work.world_size / model.seconds(work)


def print_fit(model: CostModel, measured: dict[str, Any]) -> None:
    """Print the measured times beside those of the model."""
    print(textwrap.fill(measured["source"], 110) + "\n")
    print(f"{'GPUs':>5} {'rows/GPU':>11} {'measured µs':>12} {'model':>7}")
    for record in measured["records"]:
        modelled = model.seconds(RankWork.from_record(record))
        print(
            f"{record['world_size']:5} {record['rows']:11,} {record['seconds_per_iteration'] * 1e6:12.1f} "
            f"{modelled * 1e6:7.1f}"
        )
    print("\n" + "\n".join(f"{name:22} {value:.3g}" for name, value in asdict(model).items()))


def print_table(model: CostModel, name: str, rows_on: Callable[[int], float]) -> None:
    """Print one scenario in µs per iteration. The time of the halo is the part that the product does not hide."""
    print(f"\n{name}: efficiency, and µs per iteration = local + halo + all-reduces")
    print(f"{'GPUs':>5}" + "".join(f" {cut:>10} {'µs =':>9} {'local':>8} {'halo':>7} {'reduce':>7}" for cut in CUTS))
    for world_size in WORLD_SIZES:
        line = f"{world_size:5}"
        for cut in CUTS.values():
            work = cut(rows_on(world_size), world_size)
            costs = model.costs(work)
            share = efficiency(model, rows_on(world_size), work)
            line += f" {share:10.0%} {sum(costs) * 1e6:9.1f}" + "".join(
                f" {cost * 1e6:{width}.1f}" for cost, width in zip(costs, (8, 7, 7), strict=True)
            )
        print(line)


def plot(model: CostModel, path: str) -> None:
    """Draw efficiencies, and below them the parts of an iteration with boxes, without halos that cost no time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 7), layout="constrained")
    axes = figure.subplots(2, len(SCENARIOS), sharex=True)
    for (name, rows_on), above, below in zip(SCENARIOS.items(), *axes, strict=True):
        for cut, mark in zip(CUTS, "sD", strict=True):
            shares = [efficiency(model, rows_on(p), CUTS[cut](rows_on(p), p)) for p in WORLD_SIZES]
            above.plot(WORLD_SIZES, shares, marker=mark, label=cut)
        above.set(title=name, ylim=(0, 1.05))
        costs = [model.costs(boxes(rows_on(p), p)) for p in WORLD_SIZES]
        for part, style in {"local": "-", "halo": "--", "reductions": "-."}.items():
            below.plot(WORLD_SIZES, [1e6 * getattr(cost, part) or math.nan for cost in costs], style, label=part)
        below.plot(WORLD_SIZES, [1e6 * sum(cost) for cost in costs], color="black", label="together")
        below.set(xlabel="GPUs", xscale="log", yscale="log", xticks=WORLD_SIZES[::2], xticklabels=WORLD_SIZES[::2])
        below.minorticks_off()
        for ax in (above, below):
            ax.axvline(model.ranks_per_host, color="grey", linestyle=":", label="one host")
    axes[0, 0].set_ylabel("efficiency")
    axes[1, 0].set_ylabel("µs per iteration, with boxes")
    axes[0, 0].legend()
    axes[1, 1].legend()
    figure.savefig(path, dpi=130)


def main() -> None:
    """Fit the model, print its predictions, and draw them if ``--plot`` asks for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).with_name("measured_cg.json")
    parser.add_argument("--records", default=default, type=Path, help="JSON file with the measured runs")
    parser.add_argument("--plot", metavar="FILE", help="draw a picture, .png or .svg; needs matplotlib")
    options = parser.parse_args()

    measured = json.loads(options.records.read_text())
    model = fit(measured["records"])
    print_fit(model, measured)
    print(f"\nBelow, an entry takes {RankWork.entry_bytes:g} bytes, as in plain CSR.")
    for name, rows_on in SCENARIOS.items():
        print_table(model, name, rows_on)
    if options.plot:
        plot(model, options.plot)


if __name__ == "__main__":
    main()
