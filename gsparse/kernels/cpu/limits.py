"""`threadpoolctl` limits hold for this backend's threads as they do for those of BLAS."""

from __future__ import annotations

from typing import Any

from gsparse.device.threads import get_num_threads, set_num_threads

__all__ = ["register_with_threadpoolctl"]


def register_with_threadpoolctl() -> None:
    """Make `threadpoolctl.threadpool_limits` limit our threads, where it is installed.

    It knows thread pools by the shared library they live in, and ours live in none: LLVM's, which compiled the loops
    and therefore is loaded, stands for them.
    """
    try:
        import threadpoolctl  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return

    class GsparseController(threadpoolctl.LibController):  # type: ignore[misc, unused-ignore]
        user_api = "gsparse"
        internal_api = "gsparse"
        filename_prefixes = ("libllvmlite", "llvmlite")

        def get_num_threads(self) -> int:
            return get_num_threads()

        def set_num_threads(self, num_threads: Any) -> None:
            set_num_threads(num_threads)

        def get_version(self) -> None:
            return None

    threadpoolctl.register(GsparseController)
