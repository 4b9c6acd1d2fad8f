"""A climb from the best masks that are known, after or without a search of its own."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from budcache.errors import SearchError
from budcache.mask import Mask
from budcache.strategies.anneal import climb
from budcache.strategies.space import Space
from budcache.strategies.strategy import Ask, Proposals, Strategy

__all__ = ["Polished"]


@dataclass(frozen=True)
class Polished:
    """Let another strategy search, if there is one, and climb from the best mask of each budget.

    Args:
        first: the strategy that comes first; None goes straight to the climb.
        starts: masks found by others, scored here as well: the climb may begin at one of them.
        window: how far a computed step may move; 0 leaves out the climb.
        rounds: moves of the climb at most; None is until nothing improves.
    """

    first: Strategy | None = None
    starts: tuple[Mask, ...] = ()
    window: int = 2
    rounds: int | None = 3

    def __post_init__(self) -> None:
        if self.window < 0 or (self.rounds is not None and self.rounds < 0):
            raise SearchError(f"polish needs a window and rounds of at least 0, got {self.window} and {self.rounds}.")

    def propose(self, steps: int, budgets: tuple[int, ...], rng: Random) -> Proposals:
        """The first strategy's proposals, then the starts, then the climbs; see `Strategy`."""
        best: dict[int, tuple[float, Mask]] = {}
        asks = self._asks(steps, budgets, rng)
        try:
            ask = next(asks)
            while True:
                scores = yield ask
                for mask, score in zip(ask.masks, scores, strict=True):
                    if mask.budget not in best or score.loss < best[mask.budget][0]:
                        best[mask.budget] = score.loss, mask
                ask = asks.send(scores)
        except StopIteration:
            pass
        finally:
            asks.close()
        for budget in budgets if self.window else ():
            if budget in best:
                yield from climb(Space(steps, budget), best[budget][1], self.window, self.rounds, phase="polish")

    def _asks(self, steps: int, budgets: tuple[int, ...], rng: Random) -> Proposals:
        if self.first is not None:
            yield from self.first.propose(steps, budgets, rng)
        if self.starts:
            yield Ask(self.starts, "start")

    def expected(self, steps: int, budgets: tuple[int, ...]) -> int | None:
        """Climbing ends when it ends."""
        if self.window or self.first is None:
            return None
        known = self.first.expected(steps, budgets)
        return None if known is None else known + len(self.starts)
