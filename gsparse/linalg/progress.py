"""The caller's callback and the progress bar of a solve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from gsparse._version import install_command
from gsparse.linalg.result import largest


class ConvergenceMonitor:
    """Calls the caller's callback and updates the progress bar whenever the host has read the scalars of a solve.

    Parameters
    ----------
    callback : callable, optional
        Called after each iteration with the value of `argument`.
    argument : callable, optional
        ``argument(loop, snapshot)`` computes the argument of `callback`. By default this is the current solution, in
        the form that the caller gets.
    progress : bool
        Whether to show a progress bar (tqdm) with the number of iterations and the residual.
    bounded : bool
        Whether the caller passed a maximum number of iterations. If not, the bar has no end.

    Raises
    ------
    ModuleNotFoundError
        If `progress` is true and tqdm is not installed.
    """

    def __init__(
        self,
        callback: Callable[[Any], Any] | None = None,
        argument: Callable[[Any, Any], Any] | None = None,
        progress: bool = False,
        bounded: bool = True,
    ) -> None:
        self.callback, self._argument, self._bounded = callback, argument, bounded
        self._make_bar = bars() if progress else None
        self._bar: Any = None

    @property
    def every_iteration(self) -> bool:
        """Whether the host has to read the scalars after each iteration."""
        return self.callback is not None

    @contextmanager
    def showing(self, maxiter: int) -> Iterator[None]:
        """Show the progress bar within this block, if the caller wants one."""
        if self._make_bar is None:
            yield
            return
        with self._make_bar(total=maxiter if self._bounded else None, unit="it") as self._bar:
            yield
        self._bar = None

    def update(self, snapshot: Any, loop: Any) -> None:
        """Update the progress bar and call the callback, after one or several iterations.

        Parameters
        ----------
        snapshot : Snapshot
            The scalars of the solve.
        loop : SolveLoop
            The solve.
        """
        if self._bar is not None:
            residual = largest(loop.residuals[-1:])
            self._bar.set_postfix_str(f"{loop.norm} {residual:.2e}", refresh=False)
            self._bar.update(int(snapshot.iterations.max()) - self._bar.n)
        if self.callback is not None:
            self.callback(self._argument(loop, snapshot) if self._argument else loop.solution())


def bars() -> Callable[..., Any]:
    """Return tqdm's progress bar, or raise an error that says how to install it."""
    try:
        from tqdm.auto import tqdm
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "tqdm":
            raise
        raise ModuleNotFoundError(f"progress=True needs tqdm: {install_command('progress')}", name="tqdm") from None
    return cast(Callable[..., Any], tqdm)
