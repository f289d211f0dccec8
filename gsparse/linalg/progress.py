"""What happens beside a solve: the caller's callback, and a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from gsparse.linalg.result import largest

__all__ = ["Watch", "bars"]


class Watch:
    """Sees the scalars whenever the host looks at them.

    Parameters
    ----------
    callback : callable, optional
        Called after each iteration with what `argument` makes of the solve.
    argument : callable, optional
        ``argument(iteration, snapshot)``; the solution as the caller would get it, by default.
    progress : bool
        Whether to show a bar (tqdm): iterations and the residual.
    bounded : bool
        Whether the caller said how many iterations there may be; if not, iterations are counted without an end.

    Raises
    ------
    ModuleNotFoundError
        Where there is to be a bar and no tqdm.
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
        """Whether the host has to look after each iteration."""
        return self.callback is not None

    @contextmanager
    def showing(self, maxiter: int) -> Iterator[None]:
        """Show the bar, where there is to be one, while the solve is within this block."""
        if self._make_bar is None:
            yield
            return
        with self._make_bar(total=maxiter if self._bounded else None, unit="it") as self._bar:
            yield
        self._bar = None

    def step(self, snapshot: Any, iteration: Any) -> None:
        """See the state after one or several iterations."""
        if self._bar is not None:
            residual = largest(iteration.residuals[-1:])
            self._bar.set_postfix_str(f"{iteration.norm} {residual:.2e}", refresh=False)
            self._bar.update(int(snapshot.iterations.max()) - self._bar.n)
        if self.callback is not None:
            given = self._argument(iteration, snapshot) if self._argument else iteration.solution()
            self.callback(given)


def bars() -> Callable[..., Any]:
    """Give tqdm, or say how to get it."""
    try:
        from tqdm.auto import tqdm
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "tqdm":
            raise
        raise ModuleNotFoundError("progress=True needs tqdm: pip install 'gsparse[progress]'", name="tqdm") from None
    return cast(Callable[..., Any], tqdm)
