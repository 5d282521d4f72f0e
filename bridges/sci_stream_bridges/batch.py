"""``sci-stream batch``: replay many recordings on the workers of a Dask cluster, one recording per
task.

The unit of work is a recording, because warm-started solves depend on their predecessors. A killed
worker costs the recording that it was at: Dask gives the task to another worker, which starts it
from the first snapshot.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sci_stream.errors import EnvironmentFault, InputError, require_optional
from sci_stream.nodes.runtime.process import usable_cores
from sci_stream.tools.replay.jobs import JobResult, JobState, ReplayJob
from sci_stream_bridges.batch_jobs import remove_left_behind, run_job_atomically

# Dask gives up a task whose workers died this often (`distributed.scheduler.allowed-failures`); the
# others go on.
_KILLED = "KilledWorker"
# Dask removes a worker that has not restarted after 15 s by default. On a busy machine starting
# Python takes longer, and the batch would continue with the other workers only.
_RESTART = "5 minutes"


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Choice of the workers.

    ``scheduler`` is the address of a running Dask scheduler, or its scheduler file; ``slurm``
    starts the workers as Slurm jobs, configured by Dask's ``jobqueue.yaml``; otherwise they are
    processes of this machine. ``workers`` is their number, None for one per GPU, or one on a
    machine without; ``threads`` of each on a CPU, 0 for an equal share of the processors;
    ``dashboard`` the address of Dask's web page, empty for none.
    """

    scheduler: str = ""
    slurm: bool = False
    workers: int | None = None
    threads: int = 0
    dashboard: str = "127.0.0.1:8787"


@contextmanager
def connect(options: ClusterOptions) -> Iterator[Any]:
    """Start or find the cluster and yield a Dask client; a cluster that was started ends with the
    context.

    Raises
    ------
    ConfigError
        If dask.distributed, or for Slurm dask-jobqueue, is not installed.
    EnvironmentFault
        If the scheduler does not answer.
    """
    distributed = _library("distributed")
    if options.scheduler:
        is_file = Path(options.scheduler).is_file()
        where = {"scheduler_file" if is_file else "address": options.scheduler}
        try:
            client = distributed.Client(**where, timeout="30s")
        except (OSError, ValueError) as error:
            raise EnvironmentFault(
                f"The Dask scheduler {options.scheduler} does not answer",
                got=error,
                hint="Start it: dask scheduler.",
            ) from error
        with client:
            yield client
        return
    config = _library("dask.config")
    with (
        config.set({"distributed.deploy.lost-worker-timeout": _RESTART}),
        _start_cluster(options, distributed) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def _library(module: str) -> Any:
    return require_optional(module, "batch", "sci-stream batch", "sci-stream-bridges")


def _start_cluster(options: ClusterOptions, distributed: Any) -> Any:
    """Start a cluster of Slurm jobs or of processes of this machine."""
    if options.slurm:
        jobqueue = _library("dask_jobqueue")
        cluster = jobqueue.SLURMCluster(processes=1)
        cluster.scale(jobs=options.workers or 1)
        return cluster
    count = options.workers or max(1, _gpus())
    threads = str(options.threads or max(1, usable_cores() // count))
    return distributed.LocalCluster(
        n_workers=count,
        threads_per_worker=1,  # one recording at a time, with the threads of torch
        processes=True,
        host="127.0.0.1",
        dashboard_address=options.dashboard or None,
        env=dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads),
    )


def _gpus() -> int:
    import torch  # noqa: PLC0415 - only where the workers are on this machine

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def run_batch(
    jobs: Sequence[ReplayJob],
    client: Any,
    report: Callable[[JobResult], None] = lambda _result: None,
) -> list[JobResult]:
    """Replay recordings on the workers of a Dask client; return the results in the order of the
    jobs.

    Jobs are from `sci_stream.tools.replay.jobs.plan_jobs`; workers on other machines must see the
    same paths. ``report`` is called with each result as it arrives, in any order.

    Raises
    ------
    InputError
        If there are no jobs.
    """
    distributed = _library("distributed")
    if not jobs:
        raise InputError("There are no recordings to replay")
    present = {job.out for job in jobs if job.out.exists()}
    futures = {
        client.submit(
            run_on_worker, job, pure=False, key=f"replay-{index:05d}-{job.source.stem}"
        ): index
        for index, job in enumerate(jobs)
    }
    results: dict[int, JobResult] = {}
    for future in distributed.as_completed(list(futures)):
        index = futures.pop(future)
        error = future.exception()
        result = future.result() if error is None else _lost(jobs[index], error)
        if result.state is JobState.PRESENT and jobs[index].out not in present:
            # Replayed before, in this batch, by a worker that died with the result.
            result = dataclasses.replace(result, state=JobState.DONE)
        results[index] = result
        future.release()  # else the loss of its worker would have it computed again
        report(result)
    remove_left_behind(jobs)
    return [results[index] for index in range(len(jobs))]


def _lost(job: ReplayJob, error: BaseException) -> JobResult:
    """Return the result of a job that ended its worker each time, or raised a programming error."""
    name = type(error).__name__
    text = (
        "every worker that ran it died: killed, or out of memory"
        if name == _KILLED
        else f"{name}: {error}"
    )
    return JobResult(str(job.source), str(job.out), JobState.FAILED, error=text)


def run_on_worker(job: ReplayJob) -> JobResult:
    """Run one job in a Dask worker, on its GPU if the machine has some."""
    worker = _library("distributed").get_worker()
    name = f"{socket.gethostname()}/{worker.name}"
    plan = job.plan
    if plan.device == "auto":
        plan = dataclasses.replace(plan, device=worker_device(worker, _gpus()))
    return run_job_atomically(dataclasses.replace(job, plan=plan), name)


def worker_device(worker: Any, gpus: int) -> str:
    """Return the device of a Dask worker: the workers of one machine take its GPUs in turn.

    Those that `connect` started are numbered by their names, others by the order of their
    addresses.
    """
    if gpus == 0:
        return "cpu"
    number, host = str(worker.name), _host(worker.address)
    if number.isdecimal():
        return f"cuda:{int(number) % gpus}"
    # Slurm and dask-cuda let each worker see its own GPUs only, or first.
    if gpus == 1 or "CUDA_VISIBLE_DEVICES" in os.environ:
        return "cuda:0"
    addresses = _library("distributed").get_client().nthreads()
    return (
        f"cuda:{sum(_host(other) == host and other < worker.address for other in addresses) % gpus}"
    )


def _host(address: str) -> str:
    return address.rpartition(":")[0]
