"""The workers that a job is to have: how many, where, and what each of them needs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from budcache.errors import PipelineError, SearchError, WorkerError
from budcache.events import JobName, Watch
from budcache.options import whole
from budcache.wording import quote, several

if TYPE_CHECKING:
    from budcache.workers.team import Team

__all__ = ["Source", "Workers"]

# What a worker loads: an embedded model, a folder or a hub id; or a function without arguments that makes a pipeline.
Source: TypeAlias = "str | os.PathLike[str] | Callable[[], Any]"


@dataclass(frozen=True)
class Workers:
    """Workers on a Ray cluster, for `search`, `fit`, `align` and `compare`.

    Each loads the pipeline by itself and holds the runs of its share of the samples. What is found is, to the last bit,
    what one process with the same batch finds on the same kind of processor with as many threads.

    Args:
        count: how many; None is as many as the cluster has room for, but not more than there are batches of samples.
        address: a running cluster: "host:6379", "ray://host:10001", or "auto" for one on this machine. None starts one
            on this machine, for as long as the job takes.
        cpus: of each worker; also its threads.
        gpus: of each worker; several may share one: 0.5. None is 1 where the cluster has GPUs, else 0.
        load: what each loads; None is what the job was given for a pipeline. A name, a folder that all machines have, a
            hub id, or a function that makes the pipeline and puts it onto its device.
        retries: how often in a row a worker may die before the job gives up.
        patience: seconds to wait until there is room for a worker.
    """

    count: int | None = None
    address: str | None = None
    cpus: float = 1
    gpus: float | None = None
    load: Source | None = None
    retries: int = 3
    patience: float = 60

    def __post_init__(self) -> None:
        if self.count is not None and whole("count", self.count) < 1:
            raise SearchError(f"{self.count} workers do nothing. Choose at least 1.")
        if not 0 < self.cpus < math.inf:
            raise SearchError(f"a worker cannot have {self.cpus:g} CPUs. Give it 1, or several.")
        gpus = self.gpus or 0
        if not 0 <= gpus < math.inf or (gpus > 1 and gpus != int(gpus)):
            raise SearchError(f"a worker cannot have {gpus:g} GPUs. Give it a part of one, or whole ones.")
        if whole("retries", self.retries) < 0 or not 0 < self.patience < math.inf:
            raise SearchError(
                f"retries of {self.retries} and a patience of {self.patience:g} s are not possible. Choose 0 retries "
                "or more, and a second or more."
            )

    @property
    def threads(self) -> int:
        """How many each computes with."""
        return max(1, int(self.cpus))

    def on(self, machines: Sequence[Mapping[str, float]], most: int | None = None) -> Workers:
        """The same on machines with such resources: how many, and with how many GPUs.

        Args:
            machines: what each of them has.
            most: as many have something to do; for whoever did not say how many.
        """
        cpus, gpus = (sum(machine.get(kind, 0) for machine in machines) for kind in ("CPU", "GPU"))
        found = replace(self, gpus=float(gpus > 0)) if self.gpus is None else self
        room = found.room(machines)
        if room < (self.count or 1):
            raise WorkerError(
                f"there is no room for {several(self.count or 1, 'worker')}: the cluster has {cpus:g} CPUs and "
                f"{gpus:g} GPUs on {several(len(machines), 'machine')}, and each worker takes {self.cpus:g} and "
                f"{found.gpus:g}, so {room} fit. Ask for fewer or smaller ones, or leave the number out."
            )
        return replace(found, count=self.count or min(room, most or room))

    def room(self, machines: Iterable[Mapping[str, float]]) -> int:
        """How many fit onto machines with such resources, if nobody else is there."""
        needs = {kind: need for kind, need in (("CPU", self.cpus), ("GPU", self.gpus)) if need}
        # Ray counts in ten-thousandths; 3 workers of 0.1 fit into 0.3, which floating point denies.
        return sum(
            min(int(round(machine.get(kind, 0) / need, 4)) for kind, need in needs.items()) for machine in machines
        )

    @contextmanager
    def started(
        self, pipe: Any, *, watch: Watch | None = None, job: JobName = "search", most: int | None = None
    ) -> Iterator[Team]:
        """Start them, let each load the pipeline, and end them afterwards.

        What is given to the `with` block can be handed to jobs in the place of a pipeline, to several one after the
        other.

        Args:
            pipe: what each is to load, if `load` does not say. A pipeline in this process cannot be sent to others; if
                there is one, theirs is compared with it.
            watch: told of every worker (`budcache.events`).
            job: what they are for.
            most: more workers are not started, where `count` is None.
        """
        from budcache.models import located
        from budcache.workers.cluster import connected
        from budcache.workers.fleet import Fleet
        from budcache.workers.team import Team, check_same

        here = pipe if hasattr(pipe, "scheduler") else None
        source = self.load if self.load is not None else pipe
        if hasattr(source, "scheduler"):
            raise PipelineError(
                f"a {type(source).__name__} of this process cannot be sent to workers, who load their own. Give them "
                "its name, its folder or a function that makes it: Workers(load=...)."
            )
        if not callable(source) and not isinstance(source, str | os.PathLike):
            raise PipelineError(
                f"workers cannot load {quote(source)}. Give them a name, a folder, or a function that makes a pipeline."
            )
        if not callable(source):
            source = located(source)
        with connected(self) as ray, Fleet(ray, self, watch, job, most) as fleet:
            team = Team(fleet, source)
            if here is not None:
                check_same(here, team)
            yield team
