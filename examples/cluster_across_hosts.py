"""Solve on the GPUs of several hosts: how to start a dask cluster there, and a script that connects to it.

A matrix is distributed over the cluster to which dask's client is connected. Without an address, this script starts
workers on this machine. All hosts need the same versions of Python, dask and gsparse. Install them with
pip install '.[dask]'.

By hand. Start a scheduler on one host, and on each host a worker for each of its GPUs. A worker uses the first GPU that
it sees. It also has to see the other GPUs, because GPUs can copy to each other directly only in a process that sees
both. Give it one thread and an equal part of the host's memory. By default, its memory limit would be that of one of
the host's threads, and dask ends a worker that exceeds its limit:

    head$   dask scheduler --interface ib0 --scheduler-file /shared/scheduler.json
    node1$  export NCCL_SOCKET_IFNAME=ib0 visible=0,1,2,3,4,5,6,7
            for gpu in 0 1 2 3 4 5 6 7; do
                CUDA_VISIBLE_DEVICES=$visible dask worker --scheduler-file /shared/scheduler.json --interface ib0 \\
                    --nthreads 1 --memory-limit 0.11 --local-directory /tmp &
                visible=${visible#*,},${visible%%,*}
            done
    head$   python examples/cluster_across_hosts.py --scheduler-file /shared/scheduler.json

`dask cuda worker` of dask-cuda starts all workers of a host at once. Without a shared folder, use the scheduler's
address instead of the file: `dask worker tcp://head:8786 ...` and `--address tcp://head:8786`.

Ports and networks. Ranks connect to each other at ports that the system chooses
(/proc/sys/net/ipv4/ip_local_port_range). This process sends vectors and calls to the workers, or through the
scheduler if it cannot connect to all of them within a second. NCCL chooses its own connections between GPUs. If it
chooses the wrong network interface, set NCCL_SOCKET_IFNAME, and NCCL_IB_HCA for the InfiniBand adapters. With
NCCL_DEBUG=INFO in the workers' environment, it reports its choice.

With TLS. Everyone who can reach a scheduler can run code on its workers, so go without TLS only in a network that you
trust. All processes get certificates of one authority, and the connections between ranks are then encrypted too.
The data that NCCL sends are never encrypted. Use --protocol tls and the same three files for all processes:

    head$   dask scheduler --protocol tls --tls-ca-file ca.pem --tls-cert cert.pem --tls-key key.pem
    node1$  dask worker tls://head:8786 --protocol tls --tls-ca-file ca.pem --tls-cert cert.pem --tls-key key.pem ...
    head$   python examples/cluster_across_hosts.py --address tls://head:8786 --tls ca.pem cert.pem key.pem

Under Slurm, dask-jobqueue starts the workers as jobs. In this example, each job has one GPU and does not see the other
GPUs of its host. To use several GPUs of each host, run the loop above, followed by `wait`, with
`srun --ntasks-per-node=1 --gpus-per-node=8` instead:

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
    """Return rows lo to hi of -u'' + u/100 on n points. Each worker calls this function for its own rows only."""
    middle, left, right = (scipy.sparse.eye_array(hi - lo, n, k=lo + step) for step in (0, -1, 1))
    return 2.01 * middle - left - right


@contextmanager
def connected(options: argparse.Namespace) -> Iterator[Client]:
    """Connect to the cluster with the given address, or start one on this machine if none is given."""
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
    parser.add_argument("--address", help="address of the scheduler")
    parser.add_argument("--scheduler-file", help="file that the scheduler has written")
    parser.add_argument("--tls", nargs=3, metavar=("CA", "CERT", "KEY"), help="files, if the cluster uses TLS")
    parser.add_argument("--workers", type=int, default=2, help="number of workers to wait for, or to start")
    parser.add_argument("--n", type=int, default=100_000, help="number of points")
    parser.add_argument("--device", default="auto", help="auto, cpu or gpu")
    options = parser.parse_args()

    n = options.n
    with connected(options) as client:
        client.wait_for_workers(options.workers, timeout=600)
        sources = [functools.partial(rod_rows, n)]
        with from_loaders(sources, (n, n), client=client, partition="rows", device=options.device) as A:
            print(A)
            # Vectors are dask arrays, whose chunks stay on the workers that own the rows. If a worker is lost, the
            # others load its rows and continue from a checkpoint of x, which they store every 50 iterations.
            b = da.full(n, 1.0, chunks=-(-n // len(A.workers)))
            result = cg(A, b, M=jacobi(A), rtol=1e-10, full_output=True, on_failure="resume", checkpoint_every=50)
            print(result)
            residual = da.linalg.norm(b - A @ result.x) / da.linalg.norm(b)
            print(f"true residual {residual.compute():.1e}, u in the middle {result.x[n // 2].compute():.6f}")
        if result.info != 0:
            raise SystemExit(f"not converged: {result.advice}")


if __name__ == "__main__":  # the processes of the cluster import this file
    main()
