"""The fleet: workers as Ray's actors, started, sent messages, replaced where they die, and ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from budcache.errors import WorkerError
from budcache.events import JobName, Watch, WorkerTold
from budcache.wording import several
from budcache.workers.cluster import GOES_ON, asking, check_there, machines
from budcache.workers.options import Source, Workers
from budcache.workers.worker import Starved, Worker

__all__ = ["Fleet", "Lost", "Member"]

logger = logging.getLogger(__name__)
LOOK = 5  # seconds without an answer after which it is asked whether there is a cluster


class Lost(Exception):
    """The worker that was to answer is dead, or as good as that.

    Attributes:
        memory: whether it is known that it ran out of memory.
    """

    def __init__(self, why: str, memory: bool = False) -> None:
        super().__init__(why)
        self.memory = memory


@dataclass(eq=False)
class Member:
    """One worker's place. Who takes the place of a dead one is of the next generation.

    Attributes:
        losses: how often in a row it died before it said anything.
        runs: how many it holds open.
        sample_calls: that it has made.
    """

    number: int
    actor: Any
    generation: int = 0
    losses: int = 0
    node: str = ""
    process: int = 0
    runs: int = 0
    sample_calls: int = 0


class Fleet:
    """Workers of one job.

    Args:
        ray: the engine, connected to a cluster.
        workers: how many, and what each needs.
        watch: told of every worker.
        job: what they are for.
        most: see `Workers.started`.
        kind: the actor's class.
    """

    def __init__(
        self,
        ray: Any,
        workers: Workers,
        watch: Watch | None = None,
        job: JobName = "search",
        most: int | None = None,
        kind: type[Any] = Worker,
    ) -> None:
        self.ray, self.watch, self.job, self._kind = ray, watch, job, kind
        self.workers = workers.on(machines(ray), most)
        self._source: Source | None = None
        self.check: Callable[[Member], None] | None = None  # whether a new worker has loaded what the others have
        self.members: list[Member] = []
        errors = ray.exceptions
        self._deaths = (
            *(errors.RayActorError, errors.WorkerCrashedError, errors.NodeDiedError),
            *(errors.OutOfMemoryError, errors.ObjectLostError, errors.RaySystemError),
        )

    def __enter__(self) -> Fleet:
        try:
            self.members = [Member(number, self._new()) for number in range(self.workers.count or 1)]
            wanted = {self.send(member, "where"): member for member in self.members}
            with asking():
                ready, late = self.ray.wait(list(wanted), num_returns=len(wanted), timeout=self.workers.patience)
            for place in late:
                self._drop(wanted[place])
            self._require_somebody()
            for place in ready:
                try:
                    wanted[place].node, wanted[place].process = self.get(place)
                except Lost as loss:
                    self.replace(wanted[place], wanted[place].generation, loss)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End all workers; what they hold is gone."""
        for member in self.members:
            self._kill(member)
        self.members = []

    def load(self, source: Source) -> None:
        """Let every worker load the pipeline."""
        self._source = source
        loading = {self._load(member): member for member in self.members}
        while loading:
            done = self.first(loading)
            member = loading.pop(done)
            try:
                self.get(done)
                self.tell(member, "ready")
            except Lost as loss:
                self.replace(member, member.generation, loss)

    def send(self, member: Member, method: str, *arguments: Any) -> Any:
        """Send a worker a message; `get` takes the answer."""
        with asking():
            sent = getattr(member.actor, method).remote(*arguments)
            hash(sent)  # a client's message has a name only when it has arrived, and whoever looks it up would wait
            return sent

    def post(self, method: str, *arguments: Any) -> None:
        """Send all workers a message that nobody waits for. If it does not get there, the next question says so."""
        for member in self.members:
            with suppress(WorkerError), asking():
                getattr(member.actor, method).remote(*arguments)

    def first(self, messages: Iterable[Any]) -> Any:
        """The message that is answered first. If the cluster is lost meanwhile, nobody would ever answer: an error."""
        waiting = list(messages)
        while not (done := self._answered(waiting, LOOK)):
            check_there(self.ray)
        return done[0]

    def get(self, message: Any) -> Any:
        """What a worker answered; its errors are raised here as they were there."""
        try:
            with asking():
                return self.ray.get(self.first([message]))
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            if isinstance(cause, Starved):
                raise Lost(str(cause), memory=True) from None
            if isinstance(cause, self.ray.exceptions.RaySystemError):
                raise WorkerError(
                    f"a worker cannot read what it was sent: {str(cause).strip().splitlines()[-1]}. Modules that your "
                    "functions come from must be installed on all machines."
                ) from None
            raise cause from error
        except self._deaths as error:
            raise Lost(_why(error)) from None

    def heard(self, member: Member, sample_calls: int) -> None:
        """A worker has done some of its work."""
        member.losses, member.sample_calls = 0, member.sample_calls + sample_calls
        self.tell(member, "working")

    def replace(self, member: Member, generation: int, loss: Lost, deaths: int = 0) -> None:
        """Put a new worker in the place of a dead one, unless that was done already; it holds no runs yet.

        Where there is no room for one, or it cannot load what the others have, the place is given up, and the others
        have to take over.

        Args:
            member: the place.
            generation: of the dead one.
            loss: why it is dead.
            deaths: how many have died of what it was asked, in whatever place.
        """
        if member not in self.members or member.generation != generation:
            return
        check_there(self.ray)
        self._kill(member)
        member.losses += 1
        self.tell(member, "lost")
        if (often := max(member.losses, deaths)) > self.workers.retries:
            raise _too_often(member, often, loss)
        member.actor, member.generation, member.runs = self._new(), member.generation + 1, 0
        place = self.send(member, "where")
        if not self._placed(place):
            self._drop(member)
            self._require_somebody()
            return
        try:
            member.node, member.process = self.get(place)
            if self._source is not None:
                self.get(self._load(member))
                if self.check is not None:
                    self.check(member)
        except Lost as again:
            self.replace(member, member.generation, again)
            return
        except WorkerError:  # the cluster is lost
            raise
        except Exception as error:
            if len(self.members) == 1:
                raise
            logger.warning("worker %d on %s is given up, the others take over: %s", member.number, member.node, error)
            self._drop(member)
            return
        self.tell(member, "ready")

    def _answered(self, messages: list[Any], seconds: float) -> list[Any]:
        """The message that was answered first, if one was in time."""
        with asking():
            done: list[Any] = self.ray.wait(messages, num_returns=1, timeout=seconds)[0]
        return done

    def _placed(self, place: Any) -> bool:
        """Whether a new worker has found a machine. None waits for room that went away with one."""
        end = time.monotonic() + self.workers.patience
        while not self._answered([place], 1):
            if time.monotonic() > end or self.workers.room(machines(self.ray)) < len(self.members):
                return False
        return True

    def tell(self, member: Member, state: Literal["ready", "working", "lost", "gone"]) -> None:
        """Tell whoever watches of a worker."""
        if self.watch is not None:
            of, calls = len(self.members), member.sample_calls
            self.watch(WorkerTold(self.job, member.number, of, state, member.runs, calls, member.node))

    def _new(self) -> Any:
        needs: Mapping[str, Any] = {"num_cpus": self.workers.cpus, "num_gpus": self.workers.gpus}
        # Who restarts a worker is this fleet, which knows what it held.
        with asking():
            return self.ray.remote(self._kind).options(**needs, max_restarts=0, max_task_retries=0).remote()

    def _load(self, member: Member) -> Any:
        return self.send(member, "load", self._source, self.workers.threads, self.workers.gpus)

    def _kill(self, member: Member) -> None:
        with suppress(Exception):  # it is dead, or the cluster is
            self.ray.kill(member.actor, no_restart=True)

    def _drop(self, member: Member) -> None:
        self._kill(member)
        self.members.remove(member)
        self.tell(member, "gone")

    def _require_somebody(self) -> None:
        if not self.members:
            with asking():
                free = self.ray.available_resources()
            raise WorkerError(
                f"the cluster has had no room for a worker for {self.workers.patience:g} s: it has "
                f"{free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs free, and each worker takes "
                f"{self.workers.cpus:g} and {self.workers.gpus or 0:g}. Ask for fewer or smaller workers, or wait."
            )


def _why(error: Exception) -> str:
    """What Ray says of a death: its last line has the cause, the lines before say which actor."""
    return str(error).strip().splitlines()[-1].strip().rstrip(".")


def _too_often(member: Member, losses: int, loss: Lost) -> WorkerError:
    who, often = f"worker {member.number} on {member.node or 'the cluster'}", f"{several(losses, 'time')} in a row"
    if loss.memory:
        return WorkerError(
            f"{who} ran out of memory {often} ({loss}). {GOES_ON}: use a smaller batch or size, offloading, or "
            "machines with more memory."
        )
    return WorkerError(
        f"{who} died {often}, perhaps for lack of memory ({loss}). {GOES_ON}: give workers more room, or a smaller "
        "batch, or go on without workers."
    )
