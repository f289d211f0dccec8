"""Advice from a profile: sentences that say what to change in a program, and an estimate of the time that it saves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gsparse.profiling.operation_names import CHECK, ON_LOAN
from gsparse.profiling.rows import Row

__all__ = ["advise"]

# Advice is given if it can save at least this share of the time.
_LEAST_SHARE = 0.005
# From this number of calls of one line on, the line is in a loop.
_LOOP_CALLS = 3
# Iterations of a solve from which on a preconditioner usually pays.
_MANY_ITERATIONS = 50
# Share of the iterations' time that is assumed to remain with a good preconditioner.
_PRECONDITIONED_SHARE = 0.5
# Products are slow if they take at least this time on the device, so that launches do not matter, and read at less than
# this share of the bandwidth of a copy. The second share is what a good order of the rows usually reaches.
_SLOW_SECONDS = 2e-4
_SLOW_SHARE = 0.15
_USUAL_SHARE = 0.5


class Advice(NamedTuple):
    """A sentence, and the seconds that it can save."""

    saved: float
    sentence: str


class _Program(NamedTuple):
    """What a profile measured: the rows by line, the wall-clock seconds, and the bandwidth of a copy on each device."""

    rows: Sequence[Row]
    seconds: float
    bandwidths: Mapping[str, float]

    def share(self, part: float) -> str:
        """Format a share of the time, such as "0.2 of 3 s"."""
        return f"{part:.2g} of {self.seconds:.2g} s"


def advise(rows: Sequence[Row], seconds: float, bandwidths: Mapping[str, float]) -> list[str]:
    """Return the advice for a program, the one that saves most first.

    Parameters
    ----------
    rows : sequence of Row
        The rows by line.
    seconds : float
        The wall-clock time of the profile.
    bandwidths : mapping of str to float
        The bandwidth of a copy on each device, in bytes per second.
    """
    program = _Program([row for row in rows if not row.is_other_thread], seconds, bandwidths)
    advice = [each for rule in _RULES for each in rule(program)]
    return [each.sentence for each in sorted(advice, reverse=True) if each.saved >= _LEAST_SHARE * seconds]


def _set_up(rows: Sequence[Row], *, on_loan: bool) -> list[Row]:
    """Return the rows of repeated set-ups: those on lines where the program holds a host array, or all others."""
    places = {row.place for row in rows if row.name == ON_LOAN}
    set_up = [row for row in rows if row.kind == "set-up" and row.calls >= _LOOP_CALLS]
    return [row for row in set_up if (row.place in places) == on_loan]


def _repeated_set_up(program: _Program) -> Iterator[Advice]:
    """Advise to keep the structure of a matrix that is prepared again and again."""
    set_up = _set_up(program.rows, on_loan=False)
    checks = [row for row in set_up if row.name == CHECK]
    if not checks:
        return
    most = max(checks, key=lambda row: row.calls)
    saved = sum(row.seconds * (row.calls - 1) / row.calls for row in set_up)
    total = sum(row.seconds for row in set_up)
    yield Advice(
        saved,
        f"{most.place} prepares a matrix in each of {most.calls:,} calls. All such preparations, with choosing and "
        f"building formats, take {program.share(total)}. If only the values change, make the matrix once before the "
        f"loop and call A.with_data(values), which keeps what depends on the structure: it saves up to {saved:.2g} s.",
    )


def _host_arrays(program: _Program) -> Iterator[Advice]:
    """Advise to use the device's arrays instead of those of the host."""
    again = sum(row.seconds for row in _set_up(program.rows, on_loan=True))
    for row in program.rows:
        array = row.name.partition(":")[0]
        if row.kind != "host" or not array.startswith("A.") or row.calls < _LOOP_CALLS:
            continue
        saved = row.inclusive_seconds + again
        yield Advice(
            saved,
            f"{row.place} asks for {array} on the host in {row.calls:,} calls, which takes "
            f"{program.share(row.inclusive_seconds)}. While the program holds an array of the host, each product or "
            f"solve prepares the matrix again, which takes {again:.2g} s in all. Use "
            f"{array.replace('A.', 'A.device_')}, A.with_data(values) or A.freeze(): they save up to {saved:.2g} s.",
        )


def _copies(program: _Program) -> Iterator[Advice]:
    """Advise to keep vectors on the device."""
    by_place: dict[str, list[Row]] = defaultdict(list)
    for row in program.rows:
        if row.kind == "copy" and row.calls >= _LOOP_CALLS:
            by_place[row.place].append(row)
    for place, copies in by_place.items():
        saved, calls = sum(row.seconds for row in copies), max(row.calls for row in copies)
        yield Advice(
            saved,
            f"{place} copies arrays between host and device in each of {calls:,} calls, which takes "
            f"{program.share(saved)}. Keep the vectors on the device, for instance as arrays of CuPy: this saves up to "
            f"{saved:.2g} s.",
        )


def _compilation(program: _Program) -> Iterator[Advice]:
    """Advise to compile ahead."""
    saved = sum(row.seconds for row in program.rows if row.kind == "compilation")
    yield Advice(
        saved,
        f"Compiling kernels takes {program.share(saved)}. Each machine needs this once, because the result is "
        "stored on its disk. The command `gsparse warmup` compiles ahead.",
    )


def _plain_solves(program: _Program) -> Iterator[Advice]:
    """Advise to use a preconditioner."""
    for row in program.rows:
        if row.kind != "solver" or not row.calls or row.plain_iterations < _MANY_ITERATIONS * row.calls:
            continue
        saved = (1 - _PRECONDITIONED_SHARE) * row.inclusive_seconds
        each = row.inclusive_seconds / row.plain_iterations
        yield Advice(
            saved,
            f"{row.place} calls {row.name} {row.calls:,} times without a preconditioner, which needs "
            f"{row.plain_iterations:,} iterations of {1e3 * each:.2g} ms, {program.share(row.inclusive_seconds)} in "
            "all. Pass M=gsparse.linalg.jacobi(A), ilu0(A) or amg(A), made once if the matrix stays the same. If it "
            f"halves the iterations, it saves {saved:.2g} s.",
        )


def _slow_products(program: _Program) -> Iterator[Advice]:
    """Advise to order rows and columns, and to time the formats, where products read far slower than a copy does."""
    for row in program.rows:
        if row.kind != "product" or row.bandwidth is None or row.device not in program.bandwidths:
            continue
        share = row.bandwidth / program.bandwidths[row.device]
        if share >= _SLOW_SHARE or row.device_seconds < _SLOW_SECONDS * row.calls:
            continue
        saved = min((1 - share / _USUAL_SHARE) * row.device_seconds, row.seconds)
        yield Advice(
            saved,
            f"{row.place} computes {row.name} in {row.calls:,} calls at {100 * share:.2g} % of a copy's bandwidth, "
            f"which takes {program.share(row.seconds)}. Neighbouring rows probably read distant elements of x: try an "
            "order of rows and columns that brings the entries close to the diagonal "
            "(scipy.sparse.csgraph.reverse_cuthill_mckee), and GpuSparseMatrix(S, tune=True), which times the formats. "
            f"At {_USUAL_SHARE:.0%} of a copy's bandwidth they would save {saved:.2g} s.",
        )


def _host_operations(program: _Program) -> Iterator[Advice]:
    """Name the operations that ran on the host, with the reason."""
    for row in program.rows:
        operation, _, reason = row.name.partition(": ")
        if row.kind == "host" and not operation.startswith("A."):
            yield Advice(
                row.inclusive_seconds,
                f"{row.place} runs {operation} on the host {row.calls:,} times ({reason}), which takes "
                f"{program.share(row.inclusive_seconds)}. The user guide lists what runs on the host and when.",
            )


_RULES: tuple[Callable[[_Program], Iterator[Advice]], ...] = (
    _repeated_set_up,
    _host_arrays,
    _copies,
    _compilation,
    _plain_solves,
    _slow_products,
    _host_operations,
)
