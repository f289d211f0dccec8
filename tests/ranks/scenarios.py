"""Faults, repeated on a cluster of real processes: no result may be wrong, and nothing may hang.

    python -m tests.ranks.scenarios interrupted-product --times 100
    python -m tests.ranks.scenarios strangers --times 100
    python -m tests.ranks.scenarios no-columns --times 50
    python -m tests.ranks.scenarios silent-workers --times 50

`interrupted-product` ends a product early, and checks that the next ones are right. In turn, a round
  - stops the process of a rank, interrupts the product with SIGINT (Ctrl-C), and lets the rank go on;
  - interrupts one of many products at a random time, while all ranks run;
  - has one rank answer with an error while another is stopped.

`strangers` connects foreign clients to the ports of the ranks before these connect to each other, and then to the
ports of the product servers: silent ones, ones that send noise, ones that send a byte every tenth of a second, and
many at once. The cluster must nevertheless make a matrix, multiply by it and solve with it. The last line says how
long the matrices took.

`no-columns` multiplies by X of shape (n, 0). `silent-workers` makes a matrix while a worker is stopped or killed, and
solves within the callback of a solve: each must end with a CommunicationError, unless the matrix was made before its
worker was killed.

`--tls` makes the cluster use TLS. The last line says what was done. The exit code is 1 if a result was wrong or a
round failed; a round that takes longer than two minutes ends the program with the stacks of its threads.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import distributed
import numpy as np

import gsparse.linalg as gla
from gsparse.distributed import LocalGpuCluster, distribute
from gsparse.distributed.client.calls import run_on_workers
from gsparse.distributed.client.scheduler import known_workers
from gsparse.distributed.client.task_group import TaskGroup
from gsparse.errors import CommunicationError
from tests.linalg.problems import laplacian
from tests.ranks.groups import make_certificate
from tests.ranks.strangers import strangers

RANKS = 3
S = laplacian(40)
# Seconds after which a round counts as hanging, and for which ranks may be silent.
HANG, TIMEOUT = 120, 30.0


class Failed(Exception):
    """A result was wrong, or an expected event did not happen."""


def check(A: Any, x: Any) -> None:
    """Compare a product with SciPy's, row by row."""
    wrong = np.flatnonzero(np.abs(A @ x - S @ x) > 1e-12 * (abs(S) @ np.abs(x)))
    if wrong.size:
        raise Failed(f"{wrong.size} rows of a product are wrong, the first is {wrong[0]}")


@contextmanager
def cluster(*, tls: bool) -> Iterator[distributed.Client]:
    with ExitStack() as stack:
        security = None
        if tls:
            made = make_certificate(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            roles = ("client", "scheduler", "worker")
            names = {f"tls_{role}_{kind}": made[kind] for role in roles for kind in made}
            security = distributed.Security(tls_ca_file=made["cert"], require_encryption=True, **names)
        started = stack.enter_context(LocalGpuCluster(RANKS, device="cpu", security=security))
        client = stack.enter_context(distributed.Client(started, security=security))
        client.wait_for_workers(RANKS)
        yield client


# ------------------------------------------------------------------- interrupted-product


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def interrupt_products(A: Any, x: Any, seconds: float) -> None:
    """Multiply until Ctrl-C comes."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        while True:
            A @ x
    except KeyboardInterrupt:
        pass
    timer.join()


def fail_once() -> None:
    """Make this worker's next product raise an error."""
    from gsparse.distributed.ranks import product_connections

    def failing(*args: Any) -> Any:
        product_connections.local_product = multiply
        raise ArithmeticError("planted")

    multiply, product_connections.local_product = product_connections.local_product, failing


def interrupted_product(client: distributed.Client, times: int, rng: random.Random) -> str:
    pids, counts = client.run(os.getpid), [0, 0, 0]
    vectors = np.random.default_rng(0)
    products = 0
    with distribute(S, client=client, timeout=TIMEOUT) as A:
        for number in range(times):
            faulthandler.dump_traceback_later(HANG, exit=True)
            kind, rank = number % 3, rng.randrange(RANKS)
            x, pid = vectors.standard_normal(S.shape[1]), pids[A.workers[rank]]
            check(A, x)
            if kind == 0:
                with stopped(pid):
                    interrupt_products(A, x, rng.uniform(0, 0.1))
            elif kind == 1:
                interrupt_products(A, x, rng.uniform(0, 0.05))
            else:
                client.run(fail_once, workers=[A.workers[(rank + 1) % RANKS]])
                with stopped(pid):
                    try:
                        A @ x
                    except ValueError as error:
                        if "planted" not in str(error):
                            raise
                    else:
                        raise Failed("the error of a rank was lost")
            for _ in range(5):
                check(A, vectors.standard_normal(S.shape[1]))
            counts[kind] += 1
            products += 6
    done = "{} with a stopped rank, {} while all ranks ran, {} by an error of one rank".format(*counts)
    return f"{times} products ended early ({done}); {products} others compared with SciPy's, none wrong"


# ------------------------------------------------------------------- strangers


@contextmanager
def strangers_at_ranks(kind: str, count: int) -> Iterator[None]:
    """Connect foreign clients to each port that ranks open for each other, before the ranks know the port."""
    ports = TaskGroup._open_ports
    with ExitStack() as stack:

        def opened(task_group: TaskGroup) -> Any:
            addresses = ports(task_group)
            for address in addresses:
                stack.enter_context(strangers(address, kind, count, b"\1\0\0\0"))
            return addresses

        TaskGroup._open_ports = opened  # type: ignore[method-assign]
        try:
            yield
        finally:
            TaskGroup._open_ports = ports  # type: ignore[method-assign]


def met_by_strangers(client: distributed.Client, times: int, rng: random.Random) -> str:
    b = np.random.default_rng(0).standard_normal(S.shape[0])
    kinds = [("silent", 1), ("silent", 2), ("dripping", 2), ("garbage", 50), ("dripping TLS", 2), ("silent", 90)]
    connections, seconds = 0, []
    began = time.monotonic()
    distribute(S, client=client, timeout=TIMEOUT).close()  # in this first call, workers import gsparse and compile
    alone = time.monotonic() - began
    for number in range(times):
        faulthandler.dump_traceback_later(HANG, exit=True)
        kind, count = kinds[number % len(kinds)]
        with strangers_at_ranks(kind, count):
            began = time.monotonic()
            with distribute(S, client=client, timeout=TIMEOUT) as A, ExitStack() as stack:
                seconds.append(time.monotonic() - began)
                for metadata in A._rank_metadata:
                    stack.enter_context(strangers(metadata.product_address, kind, count))
                check(A, rng.random() * b)
                x, info = gla.cg(A, b, rtol=1e-10)
                if info or np.linalg.norm(S @ x - b) > 1e-9 * np.linalg.norm(b):
                    raise Failed("a solution is wrong")
        connections += 2 * count * RANKS
    return (
        f"{times} matrices made, multiplied and solved with {connections} strangers at their ports, no number wrong; "
        f"made in {np.median(seconds):.2f} s in the median, {max(seconds):.1f} s at most "
        f"(the first, without any, in {alone:.1f} s)"
    )


# ------------------------------------------------------------------- no columns, silent workers


def products_without_columns(client: distributed.Client, times: int, rng: random.Random) -> str:
    with distribute(S, client=client, timeout=TIMEOUT) as A:
        for _ in range(times):
            faulthandler.dump_traceback_later(HANG, exit=True)
            for transposed in (False, True):
                product = (A.T if transposed else A) @ np.ones((S.shape[0], 0))
                if product.shape != (S.shape[0], 0):
                    raise Failed(f"a product without columns has the shape {product.shape}")
            check(A, np.full(S.shape[1], rng.random()))
    return f"{times} rounds of two products without columns, none wrong"


def silent_workers(client: distributed.Client, times: int, rng: random.Random) -> str:
    """In turn: distribute with a stopped worker, kill one meanwhile, solve within the callback of a solve."""
    b, slowest = np.ones(S.shape[0]), 0.0
    for number in range(times):
        faulthandler.dump_traceback_later(HANG, exit=True)
        pids: dict[str, int] = {}
        while len(pids) < RANKS:  # the worker that was killed last may still be known
            # Dask's cluster gives up a killed worker that has not come back in 15 s; this makes it start another one.
            client.cluster.scale(RANKS)
            client.wait_for_workers(RANKS)
            pids = run_on_workers(client, sorted(known_workers(client)), TIMEOUT, os.getpid, on_error="ignore")
        began = time.monotonic()
        pid = pids[rng.choice(sorted(pids))]
        try:
            if number % 3 == 0:
                with stopped(pid):
                    distribute(S, client=client, timeout=4)
                raise Failed("a matrix was made with a stopped worker")
            if number % 3 == 1:
                timer = threading.Timer(rng.uniform(0, 0.1), os.kill, (pid, signal.SIGKILL))
                timer.start()
                distribute(S, client=client, timeout=4).close()
                timer.join()
            else:
                with distribute(S, client=client, timeout=TIMEOUT) as A:
                    gla.cg(A, b, maxiter=3, callback=lambda _, A=A: gla.cg(A, b, maxiter=2))
                raise Failed("a callback solved with the matrix of its own solve")
        except CommunicationError:
            pass
        slowest = max(slowest, time.monotonic() - began)
    return f"{times} faults, ended after at most {slowest:.1f} s"


SCENARIOS: dict[str, Callable[[distributed.Client, int, random.Random], str]] = {
    "interrupted-product": interrupted_product,
    "strangers": met_by_strangers,
    "no-columns": products_without_columns,
    "silent-workers": silent_workers,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--times", type=int, default=100, help="rounds (default: 100)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tls", action="store_true", help="make the cluster use TLS")
    options = parser.parse_args()
    began = time.monotonic()
    with cluster(tls=options.tls) as client:
        try:
            done = SCENARIOS[options.scenario](client, options.times, random.Random(options.seed))
        except Failed as error:
            print(f"{options.scenario}: {error}")
            return 1
        faulthandler.cancel_dump_traceback_later()
    print(f"{options.scenario}: {done}; {time.monotonic() - began:.0f} s in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
