"""What a profile costs: products while none is open and while one is open, and the hook alone."""

from __future__ import annotations

import timeit

import scipy.sparse as sp

import gsparse

from .common import Prepared, vector
from .products import CALLS

# Repetitions of the hook, which takes less time than reading the clock.
HOOKS = 100_000


class Profile(Prepared):
    """Repeated products of a matrix with a thousand rows, as in `products.Call`, with and without an open profile."""

    params = (False, True)
    param_names = ("open",)

    def prepare(self, is_open):
        self.A = gsparse.GpuSparseMatrix(sp.diags_array([1.0, 2.0, 1.0], offsets=[-1, 0, 1], shape=(1000, 1000)))
        self.x, self.y = vector(1000), vector(1000)
        self.products()

    def products(self):
        for _ in range(CALLS):
            self.A.matvec(self.x, out=self.y)
        self.A.device.synchronize()

    def time_hundred_products(self, is_open):
        if not is_open:
            self.products()
            return
        with gsparse.profile():
            self.products()


class Hook:
    """What every product executes for the profile while none is open, less an empty loop."""

    def track_nanoseconds_of_the_hook(self):
        from gsparse.profiling import recording

        hook, nothing = (
            min(timeit.repeat(statement, number=HOOKS, globals={"recording": recording}))
            for statement in ("recording.recorder is None", "recording")
        )
        return max(hook - nothing, 1e-12) / HOOKS * 1e9

    track_nanoseconds_of_the_hook.unit = "ns"
