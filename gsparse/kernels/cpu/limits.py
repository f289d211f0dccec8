"""Limits that are set with `threadpoolctl` apply to the threads of this backend, as to those of BLAS."""

from __future__ import annotations

from typing import Any

import threadpoolctl

from gsparse.device.threads import get_num_threads, set_num_threads


class GsparseController(threadpoolctl.LibController):  # type: ignore[misc, unused-ignore]
    """The threads of this backend, as `threadpoolctl` sees them.

    `threadpoolctl` identifies a thread pool by the shared library that contains it, and ours is in none. LLVM's
    library, which is always loaded because it has compiled the loops, stands for it.
    """

    user_api = "gsparse"
    internal_api = "gsparse"
    filename_prefixes = ("libllvmlite", "llvmlite")

    def get_num_threads(self) -> int:
        return get_num_threads()

    def set_num_threads(self, num_threads: Any) -> None:
        set_num_threads(num_threads)

    def get_version(self) -> None:
        return None


def register_with_threadpoolctl() -> None:
    """Make `threadpoolctl.threadpool_limits` limit the threads of this backend."""
    threadpoolctl.register(GsparseController)
