"""Solve on the GPUs of several hosts: how to start a dask cluster there, and a script that connects to it.

A matrix goes to whatever cluster dask's client is connected to. Without an address this script starts workers on this
machine. The same versions of Python, dask and gsparse have to be on all hosts. Needs pip install '.[dask]'.

By hand. A scheduler on one host, and on each host a worker for each of its GPUs. A worker takes the first GPU that it
sees, and sees the others after it, without which they could not reach each other directly. It has one thread and a fair
part of the host's memory (by default a worker gets what its one thread is of the host's, and is ended beyond that):

    head$   dask scheduler --interface ib0 --scheduler-file /shared/scheduler.json
    node1$  export NCCL_SOCKET_IFNAME=ib0 visible=0,1,2,3,4,5,6,7
            for gpu in 0 1 2 3 4 5 6 7; do
                CUDA_VISIBLE_DEVICES=$visible dask worker --scheduler-file /shared/scheduler.json --interface ib0 \\
                    --nthreads 1 --memory-limit 0.11 --local-directory /tmp &
                visible=${visible#*,},${visible%%,*}
            done
    head$   python examples/cluster_across_hosts.py --scheduler-file /shared/scheduler.json

`dask cuda worker` of dask-cuda starts all workers of a host at once. Without a shared folder, the scheduler's address
takes the file's place: `dask worker tcp://head:8786 ...` and `--address tcp://head:8786`.

What has to get through. Ranks connect to each other at ports that the system picks
(/proc/sys/net/ipv4/ip_local_port_range), and so does this process to them for products with NumPy's vectors; where it
cannot, these go through the scheduler, which is slow, and a warning says so. NCCL finds its own way between GPUs:
NCCL_SOCKET_IFNAME names the interface where it picks a wrong one, NCCL_IB_HCA the InfiniBand adapters, and
NCCL_DEBUG=INFO in the workers' environment has it tell what it uses.

With TLS. Who reaches a scheduler can run anything on its workers, so leave it without TLS only in a network that you
trust. All sides get certificates of one authority; then the connections between ranks are encrypted too. What NCCL
sends is not, in any case. --protocol tls, and the same three files for all:

    head$   dask scheduler --protocol tls --tls-ca-file ca.pem --tls-cert cert.pem --tls-key key.pem
    node1$  dask worker tls://head:8786 --protocol tls --tls-ca-file ca.pem --tls-cert cert.pem --tls-key key.pem ...
    head$   python examples/cluster_across_hosts.py --address tls://head:8786 --tls ca.pem cert.pem key.pem

Under Slurm, dask-jobqueue starts the workers as jobs, here each with a GPU to itself and blind to the others of its
host. Where several GPUs of a host are wanted, have `srun --ntasks-per-node=1 --gpus-per-node=8` run the loop above and
`wait` instead:

    from dask_jobqueue import SLURMCluster
    from distributed import Client

    cluster = SLURMCluster(
        cores=1,  # threads of a worker
        processes=1,
        memory="100GB",
        job_cpu=8,
        queue="gpu",
        walltime="02:00:00",
        interface="ib0",
        job_extra_directives=["--gpus-per-task=1"],
        job_script_prologue=["export NCCL_SOCKET_IFNAME=ib0", "export GSPARSE_NUM_THREADS=8"],
    )
    cluster.scale(jobs=16)
    client = Client(cluster)
    client.wait_for_workers(16)

    python examples/cluster_across_hosts.py
    python examples/cluster_across_hosts.py --scheduler-file /shared/scheduler.json --workers 16 --n 400
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from contextlib import contextmanager

import dask.array as da
import scipy.sparse
from distributed import Client, Security

from gsparse.distributed import LocalGpuCluster, from_loaders
from gsparse.linalg import cg, jacobi


def rod_rows(n: int, lo: int, hi: int) -> scipy.sparse.dia_array:
    """Give rows lo to hi of -u'' + u/100 on n points: each worker makes its own, and none sees the others'."""
    middle, left, right = (scipy.sparse.eye_array(hi - lo, n, k=lo + step) for step in (0, -1, 1))
    return 2.01 * middle - left - right


@contextmanager
def connected(options: argparse.Namespace) -> Iterator[Client]:
    """Connect to the cluster that was asked for, else start one here."""
    security = None
    if options.tls:
        names = ("tls_ca_file", "tls_client_cert", "tls_client_key")
        security = Security(require_encryption=True, **dict(zip(names, options.tls, strict=True)))
    if options.address or options.scheduler_file:
        with Client(options.address, scheduler_file=options.scheduler_file, security=security) as client:
            yield client
    else:
        with LocalGpuCluster(options.workers, device=options.device) as cluster, Client(cluster) as client:
            yield client


def main() -> None:
    """Connect, wait for the workers, and solve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", help="of the scheduler")
    parser.add_argument("--scheduler-file", help="that it has written")
    parser.add_argument("--tls", nargs=3, metavar=("CA", "CERT", "KEY"), help="files, where the cluster talks TLS")
    parser.add_argument("--workers", type=int, default=2, help="to wait for, or to start")
    parser.add_argument("--n", type=int, default=100_000, help="points")
    parser.add_argument("--device", default="auto", help="auto, cpu or gpu")
    options = parser.parse_args()

    n = options.n
    with connected(options) as client:
        client.wait_for_workers(options.workers, timeout=600)
        sources = [functools.partial(rod_rows, n)]
        with from_loaders(sources, (n, n), client=client, partition="rows", device=options.device) as A:
            print(A)
            # Vectors are dask's: each chunk stays where its rows are. Where a worker is lost, the others take its rows,
            # read them again, and go on from what was kept of x every 50 iterations.
            b = da.full(n, 1.0, chunks=-(-n // len(A.workers)))
            found = cg(A, b, M=jacobi(A), rtol=1e-10, full_output=True, on_failure="resume", checkpoint_every=50)
            print(found)
            residual = da.linalg.norm(b - A @ found.x) / da.linalg.norm(b)
            print(f"true residual {residual.compute():.1e}, u in the middle {found.x[n // 2].compute():.6f}")
        if found.info != 0:
            raise SystemExit(f"not converged: {found.advice}")


if __name__ == "__main__":  # (dask's processes import this file)
    main()
