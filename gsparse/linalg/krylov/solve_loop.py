"""One solve in progress: vectors and scalars on the device, passes bound to them, and the loop that runs them.

The body of an iteration is a list of calls that only queue work. On a GPU, several iterations are captured in one CUDA
graph. If the system is small, they are one kernel instead (`one_kernel.py`). The graph or the kernel is launched
repeatedly. While it runs, the host reads the scalars of the previous launch, so that the device need not wait for the
host. Launches that take long are not queued ahead in this way (`_MAX_SECONDS_AHEAD`). Once a pass has set `stop`, all
further passes change nothing. On a CPU, the host looks at `stop` after each iteration.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gsparse.device.compilation import COMPILE_NOTICE
from gsparse.device.counters import recorded_products
from gsparse.device.dtypes import Array
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.steps import SYSTEM_CELLS, Call, Multiplication, Program, queue
from gsparse.linalg.krylov.linear_system import LinearSystem
from gsparse.linalg.krylov.one_kernel import bind_one_kernel
from gsparse.linalg.krylov.recorded_steps import captured, recorded_pass, recorded_product, timed_alone
from gsparse.linalg.krylov.solve_state import HISTORY_LENGTH, IterationPart, Snapshot, SolveState
from gsparse.linalg.operators import Apply
from gsparse.linalg.result import (
    BREAKDOWN,
    CONVERGED,
    MAXITER,
    OUT_OF_RANGE,
    REFUTED,
    ROUNDING_ADVICE,
    ConvergenceMonitor,
    SolveResult,
    describe,
    more_iterations,
)
from gsparse.profiling import recording
from gsparse.profiling.recording import Span

# The maximum number of iterations: one number for all right-hand sides, or one for each.
IterationLimit = int | npt.NDArray[np.int64]

# Pairs: if an iteration, measured without a graph, takes at most the first number of seconds, a CUDA graph has the
# second number of iterations. A graph should take longer than the host needs to read the scalars of the previous graph.
# If an iteration takes longer than all limits, a graph has one iteration.
_ITERATIONS_PER_GRAPH = ((100e-6, 16), (1e-3, 4))
# If the first iteration took longer than _LONG_ITERATION seconds and there are at least _MANY_UNKNOWNS unknowns, its
# time counts. Otherwise a second iteration is timed, because allocations or launches by the host may have taken most of
# the time of the first.
_LONG_ITERATION, _MANY_UNKNOWNS = 2e-3, 1 << 20
# If a graph takes at most this many seconds, the following graph is queued while the host waits for this one. Otherwise
# the host first checks that the solve goes on, because a graph that begins after convergence wastes its time.
_MAX_SECONDS_AHEAD = 4e-3
# After this many iterations, a few products test whether the solve can converge at all. (With 100 in place of 1000, a
# solve of 290 iterations took 5 % longer.)
_MANY_ITERATIONS = 1000


class SolveLoop:
    """Run a program on a linear system: create the calls of its passes, and repeat them until all columns have stopped.

    Parameters
    ----------
    system : LinearSystem
    program : Program
    maxiter : int, or ndarray of int, shape (columns,)
        Where the progress bar ends (at the largest of these numbers). The program itself decides when to stop.
    sizes : dict of str to int, optional
        Lengths of the vectors that are not as long as x.
    monitor : ConvergenceMonitor, optional
        The caller's callback and the progress bar.
    history : int, optional
        Number of residuals that the device keeps for each right-hand side. The host must read them at least once every
        `history` iterations, because newer residuals overwrite older ones.
    norm : str, optional
        Which norm the program records as the residual, see `SolveResult`.
    is_hopeless : callable, optional
        Function that returns whether certainly no right-hand side can converge; it takes a few products. The loop calls
        it once, after `_MANY_ITERATIONS` iterations, and ends the solve as at `maxiter` if it returns True.
    has_normal_residuals : bool, optional
        Whether the program records norm(A.H @ r) of each iteration too, half a ring buffer after the residual.
    norm_exponent : int, optional
        The recorded norms times 2 to the power of this exponent are norms in the units of b.
    """

    def __init__(
        self,
        system: LinearSystem,
        program: Program,
        maxiter: IterationLimit,
        *,
        sizes: dict[str, int] | None = None,
        monitor: ConvergenceMonitor | None = None,
        history: int = HISTORY_LENGTH,
        norm: str = "residual",
        is_hopeless: Callable[[], bool] | None = None,
        has_normal_residuals: bool = False,
        norm_exponent: int = 0,
    ) -> None:
        self.began = time.perf_counter()
        self.norm, self._norm_exponent = norm, norm_exponent
        self.system, self.device, self.maxiter = system, system.device, int(np.max(maxiter))
        kernels_of(self.device).steps.compile_steps(self.device, program, system.dtype)
        self.monitor = monitor or ConvergenceMonitor()
        self.vectors: dict[str, Array] = {"x": system.x, "b": system.b}
        for name in program.vector_names:
            if name not in self.vectors:
                size = (sizes or {}).get(name, system.A.shape[1])
                self.vectors[name] = self.device.xp.zeros(system.columns * size, system.dtype)
        capacity = 2 * history if has_normal_residuals else history
        self.state = SolveState(self.device, program, system.dtype, system.columns, capacity, system.A.ranks)
        self._program, self._is_hopeless = program, is_hopeless
        self._steps = {step.name: step for step in program.steps}
        self._residuals: list[npt.NDArray[np.float64]] = []
        self._normal_residuals: list[npt.NDArray[np.float64]] | None = [] if has_normal_residuals else None
        self.is_refuted = np.zeros(system.columns, np.bool_)  # converged, but x is no solution
        self.relative_residual: float | npt.NDArray[np.float64] = np.nan  # for the result; NaN if unknown
        self._num_residuals, self._is_resident = 0, True
        # Each product is bound once, because it may allocate vectors of its own.
        self._bound: dict[tuple[Any, bool], Apply] = {}

    def step(self, name: str, **renamed: str) -> Call:
        """Return the call that runs pass `name`. With ``x="y"``, it uses the vector y in place of the program's x."""
        vectors = {**self.vectors, **{name: self.vectors[other] for name, other in renamed.items()}}
        call = self.state.bind(name, vectors)
        if recording.recorder is not None:
            call = recorded_pass(self.device, self._program, self._steps[name], vectors, call)
        return call if renamed else IterationPart(call, (self._steps[name],))

    def apply(self, operator: Any, source: str, target: str, *, adjoint: bool = False) -> Call:
        """Return the call target = operator·source; `source` and `target` are names of vectors."""
        x, y, product = self.vectors[source], self.vectors[target], self._product(operator, adjoint=adjoint)

        def call() -> None:
            product(x, y)

        bound: Call = call if recording.recorder is None else self._recorded(operator, call, x, y)
        return bound if adjoint else IterationPart(bound, (Multiplication(source, target),), operator)

    def _recorded(self, operator: Any, call: Call, x: Array, y: Array) -> Call:
        return recorded_product(self.system, self._program, operator, call, x.nbytes + y.nbytes)

    def _product(self, operator: Any, *, adjoint: bool = False) -> Apply:
        self._is_resident = self._is_resident and operator.is_resident
        if (operator, adjoint) not in self._bound:
            bound = operator.bind(self.device, self.system.dtype, self.system.columns, adjoint=adjoint)
            self._bound[operator, adjoint] = bound
        return self._bound[operator, adjoint]

    @property
    def is_queued(self) -> bool:
        """Whether the host only queues the calls of an iteration, so that the calls must not read scalars."""
        return self._is_resident and not self.device.is_host

    def apply_and_sum(self, operator: Any, source: str, target: str, step: str) -> list[Call]:
        """Return the calls for target = operator·source and for the pass `step`, which then sums conj(source)·target.

        If the product can also compute the sum, this is one kernel.
        """
        name, call = self._steps[step].targets("sums")[0], self._product(operator)
        x, y = self.vectors[source], self.vectors[target]
        num_dots = getattr(call, "num_dots", 0)
        if not num_dots:
            return [self.apply(operator, source, target), self.step(step)]
        dots, finish = kernels_of(self.device).steps.bind_dots(self.device, self.state, name, num_dots)
        fused: Any = call

        def product() -> None:
            fused(x, y, dots)

        if recording.recorder is not None:
            product = self._recorded(operator, product, x, y)
        part = IterationPart(product, (Multiplication(source, target), self._steps[step]), operator)
        return [part] if finish is None else [part, IterationPart(finish, ())]

    # ---------------------------------------------------------------- the loop

    def run(self, begin: Sequence[Call], body: Sequence[Call], per_graph: int | None = None) -> None:
        """Run `begin` once and `body` until every right-hand side has stopped. Synchronizes.

        Parameters
        ----------
        begin, body : sequence of callables
            Each call queues work. It must not wait, allocate, or read results.
        per_graph : int, optional
            Number of copies of `body` in one CUDA graph. By default this depends on the measured time of `body`, and a
            small system runs in a single kernel instead of a graph. On a CPU, the host records the residuals after this
            many iterations. `per_graph` is ignored if the host reads the scalars after each iteration.
        """
        queue(begin)
        self.last = self.state.read()
        self._record(self.last)
        if self.last.have_all_stopped:
            return
        with self.monitor.showing(self.maxiter):
            if self.monitor.every_iteration or not self._is_resident:
                self._run_synchronously(body)
            elif not per_graph and (launch := bind_one_kernel(self.system, body, self.vectors, self.state)):
                self._launch_repeatedly(*launch)
            else:
                self._run_graphs(body, per_graph)
        self.last = self.state.read()

    def _run_synchronously(self, body: Sequence[Call]) -> None:
        while True:
            queue(body)
            if self._record_and_check(self.state.read()):
                return

    def _run_graphs(self, body: Sequence[Call], per_graph: int | None) -> None:
        """Run the first iterations one by one. On a GPU, run all further iterations in CUDA graphs."""
        first = self._run_without_graph(body, per_graph is None)
        if self.last.have_all_stopped:
            return
        count = per_graph or next((n for limit, n in _ITERATIONS_PER_GRAPH if first.seconds <= limit), 1)
        if self.device.is_host:
            self._run_on_host(body, count)
            return
        with recorded_products() as count_products:
            launch = captured(self.device, body, count, first.span)
        self._launch_repeatedly(launch, count_products)

    def _run_without_graph(self, body: Sequence[Call], is_timed: bool) -> _TimedIteration:
        """Run the iterations that have to precede a CUDA graph, which can neither compile kernels nor allocate memory.

        With `is_timed`, a second iteration is timed if the first one is not representative: if something was compiled,
        or if, on a GPU, the first iteration was short or the system is small (`_LONG_ITERATION`, `_MANY_UNKNOWNS`).
        """
        compilations = COMPILE_NOTICE.compilations
        iteration = self._run_timed(body)
        if not is_timed or self.last.have_all_stopped:
            return iteration
        compiled, size = COMPILE_NOTICE.compilations - compilations, self.system.x.size
        seconds, any_compiled, unknowns = self._means_over_ranks(iteration.seconds, compiled, size)
        may_be_host_time = not self.device.is_host and (seconds <= _LONG_ITERATION or unknowns < _MANY_UNKNOWNS)
        if any_compiled or may_be_host_time:
            iteration = self._run_timed(body)
            (seconds,) = self._means_over_ranks(iteration.seconds)
        return iteration._replace(seconds=seconds)

    def _run_timed(self, body: Sequence[Call]) -> _TimedIteration:
        """Run one iteration without a graph, record the state after it, and return its time. Synchronizes."""
        span = None
        if recording.recorder is None or self.device.is_host:
            read_time = self.device.timed(lambda: queue(body))
        else:
            span, read_time = timed_alone(self.device, self._program, body)
        self.last = self.state.read()
        self._record_and_check(self.last)
        return _TimedIteration(span, read_time() or 0.0)

    def _run_on_host(self, body: Sequence[Call], count: int) -> None:
        """Run iterations until every right-hand side has stopped; record the residuals every `count` iterations."""
        stop = self.state.snapshot(self.state.buffer)  # a view: on the host, the scalars change in place
        while True:
            for _ in range(count):
                queue(body)
                if stop.have_all_stopped:
                    break
            if self._record_and_check(self.state.read()):
                return

    def _launch_repeatedly(self, launch: Call, count_products: Call) -> None:
        """Call `launch` (several iterations) and `count_products` until every right-hand side has stopped."""
        snapshots: deque[Callable[[], Snapshot]] = deque()
        began, num_ahead = time.perf_counter(), -1
        while True:
            launch()
            count_products()
            snapshots.append(self.state.read_async())
            if len(snapshots) > num_ahead:
                if self._record_and_check(snapshots.popleft()()):
                    return
                if num_ahead < 0:  # only after the first launch, because all ranks exchange their times here
                    (seconds,) = self._means_over_ranks(time.perf_counter() - began)
                    num_ahead = int(seconds <= _MAX_SECONDS_AHEAD)

    def _means_over_ranks(self, *numbers: float) -> list[float]:
        """Return the mean of each number over all ranks, so that every rank makes the same decision."""
        sums = self.system.sum_over_ranks(np.array([*numbers, 1.0]))
        means: list[float] = (sums[:-1] / sums[-1]).tolist()
        return means

    def _record_and_check(self, snapshot: Snapshot) -> bool:
        """Record a snapshot, report it to the monitor, and return whether every right-hand side has stopped."""
        self._record(snapshot)
        self.monitor.update(snapshot, self)
        is_due = snapshot.iterations.max() >= _MANY_ITERATIONS and not snapshot.have_all_stopped
        if self._is_hopeless is not None and is_due:
            is_hopeless, self._is_hopeless = self._is_hopeless, None
            if is_hopeless():
                self.state.set(maxiter=0)
        return snapshot.have_all_stopped

    def _record(self, snapshot: Snapshot) -> None:
        self._store_residuals(snapshot)
        if self.state.ranks is not None:
            self.state.ranks.observe(self)

    def _store_residuals(self, snapshot: Snapshot) -> None:
        """Copy the new residuals out of the ring buffer."""
        capacity, done = self.state.capacity, snapshot.iterations
        new = np.arange(self._num_residuals, int(done.max()) + 1)
        of_b, of_A = (
            (self._residuals, 0, self._norm_exponent),
            (self._normal_residuals, capacity // 2, self.system.units.A),
        )
        for kept, offset, exponent in (of_b, of_A):
            if kept is not None:
                residuals = self.system.norms_of_caller(snapshot.history[:, (new + offset) % capacity].T, exponent)
                kept.append(np.where(new[:, None] <= done, residuals, np.nan))
        self._num_residuals += new.size

    # -------------------------------------------------------------- the result

    def solution(self) -> Array:
        """Return the current x in the array library of b. Synchronizes if b is a host array."""
        return self.system.deliver(self.vectors["x"])

    @property
    def iterations(self) -> int:
        """The largest number of recorded iterations of a right-hand side."""
        return max(self._num_residuals - 1, 0)  # the first residual is that of the initial guess

    @property
    def residuals(self) -> npt.NDArray[np.float64]:
        """The residuals that the host has recorded, an array of shape (iterations + 1,) or (iterations + 1, columns).

        The array has one dimension if there is one right-hand side. After a column has stopped, its residuals are NaN.
        """
        return self._in_shape_of_b(self._residuals)

    @property
    def normal_residuals(self) -> npt.NDArray[np.float64]:
        """norm(A.H @ r) of each iteration, in the form of `residuals`; empty if the program does not record it."""
        return self._in_shape_of_b(self._normal_residuals or [])

    def _in_shape_of_b(self, recorded: list[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
        numbers = np.concatenate([np.empty((0, self.system.columns)), *recorded])
        return numbers[:, 0] if len(self.system.shape) == 1 else numbers

    def result(
        self,
        *,
        reasons: dict[int, str] | None = None,
        advice: dict[int, str] | None = None,
        infos: dict[int, int] | None = None,
        takes_preconditioner: bool = True,
    ) -> SolveResult:
        """Return the result of the solve. Synchronizes.

        Parameters
        ----------
        reasons, advice : dict, optional
            Texts for the method's own stop codes: the meaning, and what the user should try.
        infos : dict, optional
            `info` for the method's own stop codes. By default it is 0 for `CONVERGED` and otherwise the number of
            iterations.
        takes_preconditioner : bool
            Whether the method accepts a preconditioner, which the advice may then name.
        """
        known_infos, self.stop = {CONVERGED: 0, **(infos or {})}, self.last.stop
        for code, columns in ((REFUTED, self.is_refuted), (OUT_OF_RANGE, self.system.columns_out_of_range())):
            if columns.any():
                self.stop[columns & [known_infos.get(claim) == 0 for claim in self.last.stop.tolist()]] = code
        codes, iterations = self.stop.tolist(), int(self.last.iterations.max())
        worst = next((code for code in codes if known_infos.get(code, 1) != 0), codes[0])
        info = known_infos.get(worst, max(iterations, 1))
        if recording.recorder is not None:
            recording.note_solve(iterations)
        at_maxiter = more_iterations("iterations (maxiter)", "jacobi(A), ilu0(A), amg(A)", self.system.M is not None)
        remedy = {MAXITER: at_maxiter, REFUTED: ROUNDING_ADVICE, **(advice or {})}.get(worst, "")
        culprits = self.system.nonfinite_inputs() if worst == BREAKDOWN else []
        if culprits:
            remedy = f"{' and '.join(culprits)} hold{'' if len(culprits) > 1 else 's'} NaN or inf."
        elif info and worst > 0 and takes_preconditioner:
            remedy = self.system.advice_on_zeros() or remedy
        return SolveResult(
            self.solution(), info, iterations, self.residuals, describe(worst, reasons or {}), remedy,
            time.perf_counter() - self.began, self.norm, relative_residual=self.relative_residual,
        )  # fmt: skip


class _TimedIteration(NamedTuple):
    """The span of one iteration, if a profile is open, and the time of the iteration on the device in seconds."""

    span: Span | None
    seconds: float


assert SYSTEM_CELLS[0] == "stop"  # every pass tests cell 0 before it does anything
