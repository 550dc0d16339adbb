"""The kinds of clusters, by name; `base.py` has their interface."""

from __future__ import annotations

from collections.abc import Sequence

from meshmend.errors import JobError
from meshmend.run.clusters.base import Cluster, JobRequest
from meshmend.run.clusters.jobset import JobSet
from meshmend.run.clusters.kubernetes import Kubernetes
from meshmend.run.clusters.local import Local
from meshmend.run.clusters.slurm import Slurm
from meshmend.run.clusters.ssh import Ssh

CLUSTERS: dict[str, Cluster] = {cluster.name: cluster for cluster in (Slurm(), Kubernetes(), JobSet(), Ssh(), Local())}
SCHEDULERS = [name for name, cluster in CLUSTERS.items() if cluster.prints]
"""The clusters that `meshmend run --print` can write a job for."""


def current() -> Cluster:
    """Return the scheduler that started this process, or else this machine alone."""
    return next((CLUSTERS[name] for name in SCHEDULERS if CLUSTERS[name].is_present()), CLUSTERS["local"])


def text_for(kind: str, script: Sequence[str], workers: int, hosts: int, options: Sequence[str] = ()) -> str:
    """Return the job that runs this script on such a cluster, to be submitted by the user."""
    if kind not in SCHEDULERS:
        raise JobError(f"cannot print a job for {kind!r}: expected {' or '.join(SCHEDULERS)}")
    return CLUSTERS[kind].text(JobRequest(script, workers, hosts, options))
