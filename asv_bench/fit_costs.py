"""Measure what each storage format costs on this machine, and fit the constants of the prediction to it.

    python asv_bench/fit_costs.py measure TIMES.json [NAME ...]   times of every format in every encoding
    python asv_bench/fit_costs.py fit TIMES.json [...]            constants for the formats in gsparse/products/
    python asv_bench/fit_costs.py choose TIMES.json [...]         how good the choices of today's constants are
    python asv_bench/fit_costs.py blocks TIMES.json [NAME ...]    times of dense blocks, and the constants of bsr

The action ``blocks`` measures and fits the constants of `bsr` alone. It measures every format on 27-point cubes with 2
to 8 unknowns a node, in order and shuffled, on the assembled matrices of elasticity, and on armadillo13k_elast_P1 (or
on the matrices with these names), in float64 and float32. Then it fits the constants of `bsr`, with those of the other
formats as they are today, and prints the line for gsparse/products/bsr.py. ``--largest`` leaves larger cubes
out, and ``fit --only bsr`` fits stored times in the same way.

A matrix is stored in each format four times: with columns and values compressed, only columns, only values, neither.
Encodings that store the same are timed once. ``measure`` runs on the device of ``--device``; on a CPU, ``--threads``
says with how many threads. Without names, it measures the assembled matrices of ``gsparse bench --assembled``.

The fit is a non-negative least squares of relative errors. A format that is far from the best one of its matrix counts
less: its exact time does not change the choice. It is repeated with larger weights where the choice was wrong, and the
constants with which the choices lose the least time are improved by small changes, and printed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure_blocks import cube, set_up_products, shuffled
from scipy.optimize import nnls

import gsparse
from gsparse.bench.assembled import assembled_names
from gsparse.bench.peers import load
from gsparse.bench.problems import Arrays, Problem, find_problem
from gsparse.bench.timing import GpuClock, Sampler, call_sampler
from gsparse.device.select import get_device
from gsparse.errors import FormatError
from gsparse.formats.costs import num_sharing
from gsparse.formats.registry import REGISTRY
from gsparse.plan.choice import count_terms
from gsparse.plan.cost_model import MACHINE_MODELS

COMPRESS = (True, "columns", "values", False)
# Numbers of nodes along an axis and of unknowns a node of the matrices of dense blocks.
BLOCKS = (
    (12, 2),
    (30, 2),
    (60, 2),
    (12, 3),
    (24, 3),
    (40, 3),
    (48, 3),
    (16, 4),
    (32, 4),
    (20, 5),
    (10, 6),
    (30, 6),
    (20, 8),
)
# A format whose predicted or measured time is this much longer than the best one's is not measured, or hardly counts.
MAX_RATIO = 8.0
# Each storage is timed in this number of turns, with this number of samples in each.
ROUNDS_OF_SAMPLES, SAMPLES = 4, 4
# A choice that takes at most this part longer than the best one counts as the best.
NEAR = 0.05
# Number of fits, of which the best one counts. After each, the rows of wrong choices get a larger weight.
ROUNDS = 60
# Number of small changes that are tried to improve the best fit.
STEPS = 2000


def storages_of(loaded: Any) -> Iterator[tuple[Any, Any]]:
    """Yield matrices in each format and encoding, with their candidates, each different storage once."""
    base = gsparse.GpuSparseMatrix(loaded.arrays[:3], shape=loaded.shape, device=loaded.device)
    fastest = min(c.seconds for c in base.plan.candidates)
    for name in REGISTRY:
        seen = set()
        for compress in COMPRESS:
            try:
                A = gsparse.GpuSparseMatrix(base, device=loaded.device, format=name, compress=compress)
                candidate = A.plan.chosen
            except FormatError:
                break
            storage = candidate.storage
            key = (storage.columns, storage.values)
            if name == "bsr" and storage.values_per_column == 1:
                break  # Without blocks, bsr is not a candidate.
            if key in seen or candidate.seconds > MAX_RATIO * fastest or candidate.padding_ratio > 4:
                continue
            seen.add(key)
            yield A, candidate


def shortest(samplers: dict[int, Sampler]) -> dict[int, float]:
    """Return the shortest of several times of each sampler, because other processes only add to them.

    The samplers take turns. After the others have had theirs, the first sample finds a cold cache, and does not count.
    """
    times: dict[int, list[float]] = {number: [] for number in samplers}
    for _ in range(ROUNDS_OF_SAMPLES):
        for number, sampler in samplers.items():
            sampler.sample()
            times[number] += [sampler.sample() for _ in range(SAMPLES)]
    return {number: min(samples) for number, samples in times.items()}


@contextmanager
def num_threads(count: int) -> Iterator[None]:
    """Let products use this number of threads of the host within the block."""
    before = gsparse.get_num_threads()
    gsparse.set_num_threads(count)
    try:
        yield
    finally:
        gsparse.set_num_threads(before)


def measure(loaded: Any, threads: tuple[int, ...], clock: GpuClock | None) -> Iterator[dict[str, Any]]:
    """Yield a row for each storage and number of threads."""
    device = loaded.device
    model = MACHINE_MODELS[device.kind]
    prepared = [(A, c, device.xp.empty(loaded.shape[0], loaded.dtype)) for A, c in storages_of(loaded)]
    for count in threads:
        samplers: dict[int, Sampler] = {}
        with num_threads(count):
            for number, (A, _, y) in enumerate(prepared):
                launch = partial(A.matvec, loaded.x, out=y)
                samplers[number] = clock.kernel_sampler(launch) if clock else call_sampler(launch, device.synchronize)
            times = shortest(samplers)
        for number, (A, candidate, _) in enumerate(prepared):
            seconds = times[number]
            storage = candidate.storage
            terms = count_terms(candidate.format, storage, candidate.nbytes, A.plan.stats, model, candidate.launch)
            encoding = f"{storage.columns} {storage.values}"
            yield {"matrix": loaded.name, "nnz": loaded.nnz, "dtype": str(loaded.dtype), "format": candidate.format,
                   "encoding": encoding, "kind": device.kind, "threads": count, "terms": terms,
                   "seconds": seconds}  # fmt: skip
    if clock is not None:
        samplers.clear()
        clock.recycle()


def read(paths: list[Path]) -> list[dict[str, Any]]:
    return [row for path in paths for row in json.loads(path.read_text())]


def by_matrix(rows: list[dict[str, Any]]) -> dict[Any, list[dict[str, Any]]]:
    groups = defaultdict(list)
    for row in rows:
        groups[row["matrix"], row["dtype"], row["kind"], row["threads"]].append(row)
    return groups


class Fit:
    """Constants of formats of one kind of device, fitted to rows with weights: of all formats, or only of one."""

    def __init__(self, rows: list[dict[str, Any]], only: str | None = None) -> None:
        self.rows, self.groups = rows, by_matrix(rows)
        formats = sorted({row["format"] for row in rows})
        # Formats that are not fitted keep today's constants.
        self.constants = {name: constants_of(name, rows[0]) for name in formats}
        best = {key: min(row["seconds"] for row in group) for key, group in self.groups.items()}
        self.weight = {id(row): best[key] / row["seconds"] for key, group in self.groups.items() for row in group}
        self._systems = {name: self._system(name) for name in formats if only in (None, name)}

    def _system(self, format: str) -> tuple[list[dict[str, Any]], list[str], Any, Any]:
        rows = [row for row in self.rows if row["format"] == format]
        # On a CPU, other instructions hide the latency that `step` stands for.
        left_out = {"step"} if rows[0]["kind"] == "cpu" else set()
        names = [name for name in rows[0]["terms"] if name not in left_out and any(row["terms"][name] for row in rows)]
        counts = [[row["terms"][name] / shared_by(row, name) for name in names] for row in rows]
        return rows, names, np.array(counts), np.array([row["seconds"] for row in rows])

    @property
    def fitted(self) -> list[str]:
        """The names of the formats whose constants are fitted."""
        return list(self._systems)

    def solve(self) -> None:
        """Find the constants for today's weights."""
        for format, (rows, names, counts, seconds) in self._systems.items():
            factors = np.array([self.weight[id(row)] for row in rows]) / seconds
            scaled = counts * factors[:, None]
            norms = scaled.max(axis=0)
            solution, _ = nnls(scaled / norms, seconds * factors)
            self.constants[format] = dict(zip(names, solution / norms, strict=True))

    def improve(self) -> None:
        """Change one constant a little at a time, at random, and keep each change with which choices lose less time."""
        rng = np.random.default_rng(0)
        places = [(format, name) for format in self._systems for name, c in self.constants[format].items() if c]
        groups = list(self.groups.values())
        predictions = {id(row): self.predict(row) for row in self.rows}
        losses = [choice_loss(group, predictions) for group in groups]
        for _ in range(STEPS):
            format, name = places[rng.integers(len(places))]
            change = self.constants[format][name] * np.expm1(rng.normal(0, 0.12))
            changed = {
                id(row): predictions[id(row)] + change * row["terms"][name] / shared_by(row, name)
                for row in self._systems[format][0]
                if row["terms"][name]
            }
            touched = [i for i, group in enumerate(groups) if any(id(row) in changed for row in group)]
            new = {i: choice_loss(groups[i], predictions | changed) for i in touched}
            if sum(new.values()) < sum(losses[i] for i in touched):
                self.constants[format][name] += change
                predictions |= changed
                losses = [new.get(i, loss) for i, loss in enumerate(losses)]

    def predict(self, row: dict[str, Any]) -> float:
        constants = self.constants[row["format"]]
        return sum(constants.get(name, 0.0) * n / shared_by(row, name) for name, n in row["terms"].items())

    def loss(self) -> float:
        """Return how much time wrong choices lose, and give both rows of each wrong choice a larger weight."""
        loss, predictions = 0.0, {id(row): self.predict(row) for row in self.rows}
        for group in self.groups.values():
            best, chosen = min(group, key=lambda row: row["seconds"]), chosen_of(group, predictions)
            loss += choice_loss(group, predictions)
            for row in (best, chosen) if chosen["seconds"] > (1 + NEAR) * best["seconds"] else ():
                self.weight[id(row)] *= 1.3
        return loss


def chosen_of(group: list[dict[str, Any]], predictions: dict[int, float]) -> dict[str, Any]:
    return min(group, key=lambda row: predictions[id(row)])


def choice_loss(group: list[dict[str, Any]], predictions: dict[int, float]) -> float:
    """Return how much the choice for one matrix loses: the logarithm of its factor, and `NEAR` if it is above that."""
    factor = chosen_of(group, predictions)["seconds"] / min(row["seconds"] for row in group)
    return math.log(factor) + NEAR * (factor > 1 + NEAR)


def shared_by(row: dict[str, Any], term: str) -> float:
    """Return the number of threads that share the work of a term."""
    return num_sharing(term, row["threads"]) if row["kind"] == "cpu" else 1


def fit(rows: list[dict[str, Any]], only: str | None = None) -> None:
    """Print the constants with which the choices lose the least time, out of fits with different weights.

    With `only`, those of one format.
    """
    for kind in sorted({row["kind"] for row in rows}):
        of_kind, best = Fit([row for row in rows if row["kind"] == kind], only), (math.inf, {})
        for _ in range(ROUNDS):
            of_kind.solve()
            constants, loss = dict(of_kind.constants), of_kind.loss()
            best = min(best, (loss, constants), key=lambda pair: pair[0])
        of_kind.constants = best[1]
        of_kind.improve()
        for format in of_kind.fitted:
            constants = of_kind.constants[format] | setup_of(of_kind.rows, format)
            print(f"{kind:4}{format:16} " + ", ".join(f"{n}={c:.3g}" for n, c in constants.items() if c))
        print_choices(of_kind.rows, of_kind.predict)


def setup_of(rows: list[dict[str, Any]], format: str) -> dict[str, float]:
    """Return the median of the measured times of the set-up, in products, if there are any."""
    measured = {row["matrix"]: row["setup"] for row in rows if row["format"] == format and "setup" in row}
    return {"setup": statistics.median(measured.values())} if measured else {}


def constants_of(format: str, row: dict[str, Any]) -> dict[str, float]:
    """Return today's constants of a format, for the terms and the kind of device of this row."""
    kernel = REGISTRY[format].costs[row["kind"]]
    return {term: getattr(kernel, term) for term in row["terms"]}


def predicted(row: dict[str, Any]) -> float:
    """Return the time that today's constants predict."""
    constants = constants_of(row["format"], row)
    return sum(constants[term] * count / shared_by(row, term) for term, count in row["terms"].items())


def block_problems(names: list[str], largest: float) -> Iterator[Problem]:
    """Yield the matrices of dense blocks with at most `largest` entries, or those with these names."""
    for n, size in () if names else BLOCKS:
        for kind, make in (("", cube), (", shuffled", shuffled)):
            if 27 * n**3 * size**2 <= largest:
                yield Problem(f"27-point {n}^3 x {size}{kind}", partial(_of_blocks, make, n, size))
    for name in names or [name for name in assembled_names() if name.startswith("elasticity")]:
        yield find_problem(name)
    if not names:
        try:
            yield find_problem("armadillo13k_elast_P1")
        except FileNotFoundError as error:
            print(error)


def _of_blocks(make: Callable[[int, int], Any], n: int, size: int, xp: Any) -> Arrays:
    S = make(n, size).tocsr()
    return Arrays(*(xp.asarray(part) for part in (S.data, S.indices, S.indptr)), S.shape)


def measure_blocks(options: argparse.Namespace, device: Any, clock: GpuClock | None) -> list[dict[str, Any]]:
    """Return the rows of matrices of dense blocks, those of `bsr` with the time of the set-up in products."""
    rows: list[dict[str, Any]] = []
    for problem in block_problems(options.names, options.largest):
        for dtype in options.dtype or ["float64", "float32"]:
            try:
                loaded = load(problem, device, dtype)
                found = list(measure(loaded, (1,) if clock else tuple(options.threads), clock))
                A = gsparse.GpuSparseMatrix(loaded.arrays[:3], shape=loaded.shape, device=device, format="bsr")
                setup = set_up_products(A)
            except Exception as error:  # The other matrices are still measured.
                print(f"{problem.name}, {dtype}: {type(error).__name__}: {error}", flush=True)
                continue
            rows += [row | {"setup": setup} if row["format"] == "bsr" else row for row in found]
            options.paths[0].write_text(json.dumps(rows))
            print(f"{problem.name}, {dtype}: {len(rows)} figures, set-up of bsr {setup:.0f} products", flush=True)
    return rows


def print_choices(rows: list[dict[str, Any]], predict: Callable[[dict[str, Any]], float]) -> None:
    """Print each choice that is not nearly the best one, and how many are."""
    results = defaultdict(list)
    for key, group in sorted(by_matrix(rows).items()):
        best, chosen = min(row["seconds"] for row in group), min(group, key=predict)
        factor = chosen["seconds"] / best
        results[key[1:]].append(factor)
        if factor > 1 + NEAR:
            winner = min(group, key=lambda row: row["seconds"])
            print(f"{key[0]:48} {key[1]:8} {key[2]} {key[3]:2} {factor:5.2f}  {chosen['format']} {chosen['encoding']}"
                  f"  best {winner['format']} {winner['encoding']} {best * 1e6:.1f} µs")  # fmt: skip
    for key, factors in results.items():
        near = sum(f <= 1 + NEAR for f in factors)
        mean = math.exp(sum(map(math.log, factors)) / len(factors))
        print(f"{key}: within 5 % on {near} of {len(factors)}, mean {mean:.3f}, worst {max(factors):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("measure", "fit", "choose", "blocks"))
    parser.add_argument("paths", nargs=1, type=Path, metavar="TIMES.json")
    parser.add_argument("names", nargs="*", help="matrices to measure, or more files")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", action="append", choices=("float64", "float32"))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", metavar="FORMAT", help="fit the constants of this format alone")
    parser.add_argument("--largest", type=float, default=math.inf, help="most entries of a cube of blocks")
    options = parser.parse_args()
    if options.action in ("fit", "choose"):
        rows = read([*options.paths, *map(Path, options.names)])
        return fit(rows, options.only) if options.action == "fit" else print_choices(rows, predicted)
    device, rows = get_device(options.device), []
    with device.active():
        clock = GpuClock(device.xp) if device.kind == "gpu" else None
        if options.action == "blocks":
            return fit(measure_blocks(options, device, clock), only="bsr")
        for name in options.names or assembled_names():
            for dtype in options.dtype or ["float64"]:
                try:
                    loaded = load(find_problem(name), device, dtype)
                    rows += measure(loaded, (1,) if clock else tuple(options.threads), clock)
                except Exception as error:  # The other matrices are still measured.
                    print(f"{name}, {dtype}: {type(error).__name__}: {error}", flush=True)
                options.paths[0].write_text(json.dumps(rows))
                print(f"{name}, {dtype}: {len(rows)} figures", flush=True)
    return None


if __name__ == "__main__":
    main()
