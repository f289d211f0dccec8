"""One solve in progress: vectors and scalars on the device, passes bound to them, and the loop that runs them.

The body of an iteration is a list of calls that only queue work. On a GPU several iterations are captured in one CUDA
graph and launched again and again; the host looks at a copy of the scalars of the graph before, so it never makes
the device wait. Once a pass has set `stop`, all further passes leave everything as it is.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.counters import recorded_products
from gsparse.device.dtypes import Array
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.calls import Call, queue
from gsparse.kernels.steps import SYSTEM_CELLS, Program
from gsparse.linalg.krylov.linear_system import System
from gsparse.linalg.operators import Apply, Ranks
from gsparse.linalg.progress import Watch
from gsparse.linalg.result import BREAKDOWN, CONVERGED, MAXITER, SolveResult, describe, more_iterations

__all__ = ["Iteration", "State"]

# Seconds that an iteration takes, called one by one, up to which so many are put into a graph: one should take longer
# than the host needs to look at the one before. Longer iterations are waited for one by one, so that none runs in vain
# after convergence.
_PER_GRAPH = ((100e-6, 16), (1e-3, 4))
_LONGEST_AHEAD = 4e-3
_HISTORY = 64


@dataclass(eq=False)
class State:
    """Scalars of a program on the device, for each right-hand side, and the recent history of its residual.

    Attributes
    ----------
    device : Device
    program : Program
    dtype : dtype
        Of vectors.
    columns : int
    capacity : int
        Residuals kept: a ring, by iteration.
    ranks : Ranks, optional
        Those that share the vectors: what passes sum is summed over all of them, so that scalars are the same on each.
    pending : dict
        Partial sums by name, as the backend leaves them.
    """

    device: Device
    program: Program
    dtype: np.dtype[Any]
    columns: int
    capacity: int = _HISTORY
    ranks: Ranks | None = None
    buffer: Array = field(init=False, repr=False)
    pending: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._is_fresh = True
        self._wide = np.dtype(np.complex128 if self.dtype.kind == "c" else np.float64)
        self._num_cells = len(self.program.cells) * self.columns * (self._wide.itemsize // 8)
        self.buffer = self.device.xp.zeros(self._num_cells + self.columns * self.capacity, np.float64)

    @property
    def cells(self) -> Array:
        """Scalars, those of a right-hand side side by side."""
        return self.buffer[: self._num_cells].view(self._wide)

    @property
    def history(self) -> Array:
        return self.buffer[self._num_cells :]

    @property
    def reduce(self) -> Callable[[Array], None] | None:
        """Adds sums up over all ranks, in place; None where there is but one."""
        return None if self.ranks is None else self.ranks.allreduce

    def set(self, **scalars: Any) -> None:
        """Write scalars from the host; one value, or one a right-hand side. Synchronizes, but for the first time."""
        buffer = np.zeros(self.buffer.size) if self._is_fresh else self.device.download(self.buffer)
        self._is_fresh = False
        cells = buffer[: self._num_cells].view(self._wide).reshape(self.columns, -1)
        for name, value in scalars.items():
            if name in self.program.pending:
                raise KeyError(f"{name} is a sum of passes, not a scalar to be set")
            cells[:, self.program.cells[name]] = value
        self.buffer[...] = self.device.upload(buffer)

    def look(self) -> Snapshot:
        """Read all scalars. Synchronizes."""
        return self.peek()()

    def peek(self) -> Callable[[], Snapshot]:
        """Queue a copy of all scalars, and give a function that waits for it."""
        copied = self.device.peek(self.buffer, None if self.ranks is None else self.ranks.wait)
        return lambda: self.snapshot(copied())

    def snapshot(self, buffer: npt.NDArray[np.float64]) -> Snapshot:
        """Read a copy of the buffer."""
        cells = buffer[: self._num_cells].view(self._wide).reshape(self.columns, -1)
        return Snapshot(self.program.cells, cells, buffer[self._num_cells :].reshape(self.columns, -1))


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Scalars as they were after some iteration."""

    places: dict[str, int]
    cells: npt.NDArray[Any]
    history: npt.NDArray[np.float64]

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self.cells[:, self.places[name]]

    @property
    def stop(self) -> npt.NDArray[np.int64]:
        return self["verdict" if "verdict" in self.places else "stop"].real.astype(np.int64)

    @property
    def iterations(self) -> npt.NDArray[np.int64]:
        return self["iteration"].real.astype(np.int64)


class Iteration:
    """A program at work on a system.

    Parameters
    ----------
    system : System
    program : Program
    maxiter : int
    sizes : dict of str to int, optional
        Length of vectors that are not as long as x.
    watch : Watch, optional
        Callback and progress bar.
    history : int, optional
        Iterations between two looks of the host, at most: so many residuals are kept on the device.
    norm : str, optional
        What the program records as residuals, see `SolveResult`.
    """

    def __init__(
        self,
        system: System,
        program: Program,
        maxiter: int,
        *,
        sizes: dict[str, int] | None = None,
        watch: Watch | None = None,
        history: int = _HISTORY,
        norm: str = "residual",
    ) -> None:
        self.began = time.perf_counter()
        self.norm = norm
        self.system, self.device, self.maxiter = system, system.device, maxiter
        self.watch = watch or Watch()
        self.vectors: dict[str, Array] = {"x": system.x, "b": system.b}
        for name in program.vector_names:
            if name not in self.vectors:
                size = (sizes or {}).get(name, system.A.shape[1])
                self.vectors[name] = self.device.xp.zeros(system.columns * size, system.dtype)
        self.state = State(self.device, program, system.dtype, system.columns, history, system.A.ranks)
        self._program = program
        self._steps = {step.name: step for step in program.steps}
        self._residuals: list[npt.NDArray[np.float64]] = []
        self._num_residuals = 0
        self._is_resident = True
        self._bound: dict[tuple[Any, bool], Apply] = {}  # once each: a product may have vectors of its own

    def step(self, name: str, **renamed: str) -> Call:
        """Bind a pass; ``x="y"`` has it work on the vector y where the program says x."""
        vectors = {**self.vectors, **{mine: self.vectors[theirs] for mine, theirs in renamed.items()}}
        bind: Callable[..., Call] = kernels_of(self.device).bind_step
        return bind(self.device, self._program, self._steps[name], vectors, self.state)

    def apply(self, operator: Any, source: str, target: str, *, adjoint: bool = False) -> Call:
        """Bind a product: the vector `target` becomes operator·source."""
        x, y, call = self.vectors[source], self.vectors[target], self._product(operator, adjoint=adjoint)
        return lambda: call(x, y)

    def _product(self, operator: Any, *, adjoint: bool = False) -> Apply:
        self._is_resident = self._is_resident and operator.is_resident
        if (operator, adjoint) not in self._bound:
            bound = operator.bind(self.device, self.system.dtype, self.system.columns, adjoint=adjoint)
            self._bound[operator, adjoint] = bound
        return self._bound[operator, adjoint]

    @property
    def is_queued(self) -> bool:
        """Whether work is queued while the host goes on: it must not look at scalars in between."""
        return self._is_resident and not self.device.is_host

    def apply_and_sum(self, operator: Any, source: str, target: str, step: str) -> list[Call]:
        """Bind a product and the pass that sums conj(source)·target after it: in one, where the product can."""
        name, call = self._steps[step].targets("sums")[0], self._product(operator)
        x, y = self.vectors[source], self.vectors[target]
        num_dots = getattr(call, "num_dots", 0)
        if not num_dots:
            return [self.apply(operator, source, target), self.step(step)]
        dots, finish = kernels_of(self.device).bind_dots(self.device, self.state, name, num_dots)
        fused: Any = call
        product = [lambda: fused(x, y, dots)]
        return product if finish is None else [*product, finish]

    # ---------------------------------------------------------------- the loop

    def run(self, begin: Sequence[Call], body: Sequence[Call], per_graph: int | None = None) -> None:
        """Run `begin` once and `body` until every right-hand side has stopped. Synchronizes.

        Parameters
        ----------
        begin, body : sequence of callables
            Each queues work and does not wait, allocate or look at results.
        per_graph : int, optional
            How often one CUDA graph holds `body`; by the time it takes where not given.
        """
        queue(begin)
        self.last = self.state.look()
        self._see(self.last)
        if self.last.stop.all():
            return
        with self.watch.showing(self.maxiter):
            if self.watch.every_iteration or not self._is_resident:
                self._run_one_by_one(body)
            else:
                self._run_ahead(body, per_graph)
        self.last = self.state.look()

    def _run_one_by_one(self, body: Sequence[Call]) -> None:
        while True:
            queue(body)
            if self._is_over(self.state.look()):
                return

    def _run_ahead(self, body: Sequence[Call], per_graph: int | None) -> None:
        """Keep one graph of iterations queued while the host looks at what the one before has come to."""
        queue(body)  # it compiles and allocates what none in a graph may
        finished = None if per_graph else self.device.timed(lambda: queue(body))
        if self._is_over(self.state.look()):
            return
        seconds = self._agreed((finished() if finished else None) or 0.0)
        count = per_graph or next((n for most, n in _PER_GRAPH if seconds <= most), 1)
        with recorded_products() as count_products:
            launch = self.device.recorded(lambda: queue(body, count))
        looks: deque[Callable[[], Snapshot]] = deque()
        began, ahead = time.perf_counter(), -1
        while True:
            launch()
            count_products()
            looks.append(self.state.peek())
            if len(looks) > ahead:
                if self._is_over(looks.popleft()()):
                    return
                if ahead < 0:  # (asked once: all ranks add up their times)
                    ahead = int(self._agreed(time.perf_counter() - began) <= _LONGEST_AHEAD)

    def _agreed(self, seconds: float) -> float:
        """Give the mean of a time over all ranks, which all have to decide alike."""
        total = self.system.total(np.array([seconds, 1.0]))
        return float(total[0] / total[1])

    def _is_over(self, snapshot: Snapshot) -> bool:
        self._see(snapshot)
        self.watch.step(snapshot, self)
        return bool(snapshot.stop.all())

    def _see(self, snapshot: Snapshot) -> None:
        self._keep(snapshot)
        if self.state.ranks is not None:
            self.state.ranks.look(self)

    def _keep(self, snapshot: Snapshot) -> None:
        """Take the residuals that are new out of the ring."""
        done = snapshot.iterations
        new = np.arange(self._num_residuals, int(done.max()) + 1)
        taken = snapshot.history[:, new % self.state.capacity].T
        self._residuals.append(np.where(new[:, None] <= done, taken, np.nan))
        self._num_residuals += new.size

    # -------------------------------------------------------------- the result

    def solution(self) -> Array:
        """Give x as it is now, as the caller gets it. Synchronizes where that is on the host."""
        return self.system.deliver(self.vectors["x"])

    @property
    def iterations(self) -> int:
        """Iterations that the host has seen, of the right-hand side with most."""
        return max(self._num_residuals - 1, 0)  # (the first residual is from before)

    @property
    def residuals(self) -> npt.NDArray[np.float64]:
        """Residuals so far."""
        found = np.concatenate([np.empty((0, self.system.columns)), *self._residuals])
        return found[:, 0] if len(self.system.shape) == 1 else found

    def result(
        self,
        *,
        reasons: dict[int, str] | None = None,
        advice: dict[int, str] | None = None,
        infos: dict[int, int] | None = None,
    ) -> SolveResult:
        """Give what the caller gets. Synchronizes.

        Parameters
        ----------
        reasons, advice : dict, optional
            What a method's own stop codes mean, and what to try then.
        infos : dict, optional
            `info` for stop codes where it is neither 0 for `CONVERGED` nor else the number of iterations.
        """
        codes, iterations = self.last.stop.tolist(), int(self.last.iterations.max())
        known = {CONVERGED: 0, **(infos or {})}
        worst = next((code for code in codes if known.get(code, 1) != 0), codes[0])
        info = known.get(worst, max(iterations, 1))
        x = self.solution()
        seconds = time.perf_counter() - self.began
        said = describe(worst, reasons or {})
        more = more_iterations("iterations (maxiter)", "jacobi(A), ilu0(A), amg(A)", self.system.M is not None)
        tried = {MAXITER: more, **(advice or {})}.get(worst, "")
        culprits = self.system.nonfinite() if worst == BREAKDOWN else []
        if culprits:
            tried = f"{' and '.join(culprits)} hold{'' if len(culprits) > 1 else 's'} NaN or inf."
        return SolveResult(x, info, iterations, self.residuals, said, tried, seconds, self.norm)


assert SYSTEM_CELLS[0] == "stop"  # (passes look at cell 0)
