"""States after computed prefixes: plans that agree so far share them (F4)."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import Generic, TypeVar

from torch import Tensor

from budcache.calibration.calibration import Calibration
from budcache.errors import SearchError
from budcache.numerics.memory import leaves, park, size_of, unpark
from budcache.numerics.rollout import State, coast, compute, ended, reuse
from budcache.plan import Stretch
from budcache.rows import MAX_BLEND

__all__ = ["Memory", "Prefixes"]

T = TypeVar("T")


class Memory(Generic[T]):
    """What is remembered by key, within a bound in bytes; what was not asked for longest goes first.

    States of neighbouring prefixes share most of their tensors, which count once.
    """

    def __init__(self, bound: int) -> None:
        self.bound, self.size = bound, 0
        self._known: OrderedDict[Hashable, T] = OrderedDict()
        self._users: Counter[int] = Counter()  # of each tensor

    def get(self, key: Hashable) -> T | None:
        """What was put there, if it is still remembered."""
        value = self._known.get(key)
        if value is not None:
            self._known.move_to_end(key)
        return value

    def put(self, key: Hashable, value: T) -> None:
        """Remember it, and forget the oldest until all fits the bound."""
        if self.bound <= 0 or key in self._known:
            return
        self._known[key] = value
        for leaf in leaves(value):
            self.size += 0 if self._users[id(leaf)] else size_of(leaf)
            self._users[id(leaf)] += 1
        while self.size > self.bound and self._known:
            _, dropped = self._known.popitem(last=False)
            for leaf in leaves(dropped):
                self._users[id(leaf)] -= 1
                self.size -= 0 if self._users[id(leaf)] else size_of(leaf)
            self._users += Counter()  # without those that nobody uses

    def __len__(self) -> int:
        return len(self._known)


class Prefixes:
    """All runs of a calibration, walked along stretches; where a walk has been before it goes on from memory.

    Args:
        calibration: the runs.
        outputs: how many outputs to keep in a state, for blends.
        memory: bytes that may be spent on remembered states; 0 remembers none. The results are the same.
        branch: whether to keep the conditional branch's outputs as well, where the runs tell them apart.
        switch: a step behind which the outputs from before it are forgotten: those of another expert.
    """

    def __init__(
        self,
        calibration: Calibration,
        outputs: int = 1,
        memory: int = 0,
        branch: bool = True,
        switch: int | None = None,
    ) -> None:
        if not 1 <= outputs <= MAX_BLEND:
            raise SearchError(f"a policy blends 1 to {MAX_BLEND} outputs, not {outputs}. Three are often enough.")
        self.calibration, self.outputs, self.branch, self.switch = calibration, outputs, branch, switch
        self._memory: Memory[list[State]] = Memory(memory)
        # Where the last walk ended: a walk that is made stretch by stretch goes on from there, memory or not.
        self._newest: tuple[tuple[Stretch, ...], list[State]] | None = None

    def at(self, stretches: tuple[Stretch, ...]) -> list[State]:
        """Every run's state where the stretches end, the model computed there; parked until `unpark`ed for work."""
        place, states = len(stretches), self._known(stretches)
        while states is None and place:
            place -= 1
            states = self._known(stretches[:place])
        if states is None:
            states = [self._computed(number, run.noise) for number, run in enumerate(self.calibration.runs)]
            self._memory.put((), states)
        for end in range(place, len(stretches)):
            states = [self._beyond(number, state, stretches[end]) for number, state in enumerate(states)]
            self._memory.put(stretches[: end + 1], states)
        self._newest = stretches, states
        return states

    def along(self, number: int, state: State, stretch: Stretch) -> Iterator[State]:
        """One run along a stretch: the state after each of its steps, one at a time."""
        run, solver = self.calibration.runs[number], self.calibration.solver(number)
        if stretch.noise is not None:
            stretch = stretch.on(self.calibration.moves(number))
        return reuse(run, unpark(state), stretch, run.sigmas, solver, self.calibration.residual)

    def pushed(self, number: int, state: State, v: Tensor, end: int) -> Iterator[State]:
        """One run with any velocity to a step: the state after each step. `state` is at work already."""
        return coast(state, v, end, self.calibration.runs[number].sigmas, self.calibration.solver(number))

    def finals(self, states: list[State], last: Stretch) -> list[Tensor]:
        """Every run's final latents along the last stretch; on the CPU, for the device holds one run at a time."""
        return [ended(self.along(number, state, last)).x.cpu() for number, state in enumerate(states)]

    def forget(self) -> None:
        """Let go of the remembered states."""
        self._memory, self._newest = Memory(self._memory.bound), None

    def _known(self, stretches: tuple[Stretch, ...]) -> list[State] | None:
        if self._newest is not None and self._newest[0] == stretches:
            return self._newest[1]
        return self._memory.get(stretches)

    def _computed(self, number: int, x: Tensor) -> State:
        return self._parked(number, State(x, start=x))

    def _beyond(self, number: int, state: State, stretch: Stretch) -> State:
        there = ended(self.along(number, state, stretch))
        if self.switch is not None and stretch.step < self.switch <= stretch.end:
            there = replace(there, outputs=(), branch=())
        return self._parked(number, there)

    def _parked(self, number: int, state: State) -> State:
        """A run computed where it is, to wait for its turn."""
        run = self.calibration.runs[number]
        state = compute(run, state, run.sigmas, self.outputs)
        return park(state if self.branch else replace(state, branch=()), self.calibration.shelf)
