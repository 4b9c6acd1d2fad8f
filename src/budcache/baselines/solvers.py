"""Fewer steps of a better solver, at its best: what a user would choose who has no cache at all."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from budcache.baselines.base import Baseline, Knob
from budcache.baselines.fewer import SPACINGS, another_solver, check_euler
from budcache.errors import SearchError
from budcache.mask import Mask

if TYPE_CHECKING:
    from typing_extensions import Self

    from budcache.baselines.record import Record
    from budcache.baselines.tally import Tally

__all__ = ["IPNDM", "SOLVERS", "DPMSolverPP", "Solver", "UniPC"]

GAPS = (1e-6, 5e-4, 5e-3)  # of the first noise level to 1; diffusers has solvers of flows begin at the first or second
UNIPC_ORDERS = (1, 2, 3)


@dataclass(frozen=True, kw_only=True)
class Solver(Baseline):
    """So many steps of another solver, each of which runs the whole network.

    Args:
        budget: the knob: how many steps; 0 is all K.
        spacing: where the noise levels between the first and the last lie, one of `SPACINGS`.
    """

    knob: ClassVar[Knob] = Knob("budget", whole=True)
    static: ClassVar[bool] = True
    whole: ClassVar[bool] = True
    choices: ClassVar[dict[str, tuple[Any, ...]]] = {}  # of settings beside the spacing
    budget: int = 0
    spacing: str = "usual"

    def __post_init__(self) -> None:
        """Refuse what no solver has, such as in a file that was written by hand."""
        for name, known in {"spacing": tuple(SPACINGS), **self.choices}.items():
            value, first = getattr(self, name), known[0]
            fits = 0 < value < 0.5 if isinstance(first, float) else value in known
            if not fits or isinstance(value, bool) != isinstance(first, bool):
                raise SearchError(f"{self.name} has no {name} {value!r}. Choose one of {', '.join(map(str, known))}.")

    @classmethod
    def check(cls, pipe: Any) -> None:
        """Refuse pipelines whose solver no other can take the place of."""
        check_euler(pipe.scheduler)

    @classmethod
    def calibrated(cls, record: Record) -> Self:
        """Nothing is learned."""
        return cls(steps=record.steps)

    def mask(self, steps: int | None = None) -> Mask:
        """All of its steps."""
        return Mask.full(self.asked(self.steps if steps is None else steps))

    def asked(self, steps: int) -> int:
        """Its own number of steps."""
        return self.budget or steps

    def at_budget(self, budget: int, steps: int) -> Self:
        """As many steps as calls."""
        return replace(self, budget=budget)

    def pattern(self, steps: int) -> Hashable:
        """What acts in so few steps."""
        count = self.asked(steps)
        return count, repr(self.acting(count))

    def acting(self, steps: int) -> Self:
        """The same with what has no effect in so few steps as it usually is: two levels cannot be spaced."""
        return replace(self, budget=0, spacing="usual") if steps <= 2 else replace(self, budget=0)

    @contextmanager
    def solving(self, pipe: Any, tally: Tally | None = None) -> Iterator[None]:
        """A pipeline with this solver for the length of a `with` block; a tally is told of every step."""
        original = pipe.scheduler
        pipe.scheduler = another_solver(original, self.name, spacing=self.spacing, **self.given)
        pipe.scheduler.tally = tally
        try:
            yield
        finally:
            pipe.scheduler = original

    @property
    def given(self) -> dict[str, Any]:
        """The solver's settings, as `another_solver` takes them."""
        return {}

    def variants(self) -> list[Self]:
        """Every spacing with every setting of the solver's own, the usual ones first."""
        choices = {"spacing": tuple(SPACINGS), **self.choices}
        found = [replace(self, **dict(zip(choices, values, strict=True))) for values in product(*choices.values())]
        return list(dict.fromkeys([self, *found]))


@dataclass(frozen=True, kw_only=True)
class IPNDM(Solver):
    """iPNDM(2M)."""

    name: ClassVar[str] = "ipndm"
    candidates: ClassVar[int] = len(SPACINGS)


@dataclass(frozen=True, kw_only=True)
class DPMSolverPP(Solver):
    """DPM-Solver++(2M).

    Args:
        gap: how far below 1 the first noise level lies at least.
        heun: whether its second order is Heun's; else the midpoint's.
    """

    name: ClassVar[str] = "dpmpp"
    choices: ClassVar[dict[str, tuple[Any, ...]]] = {"gap": GAPS, "heun": (False, True)}
    candidates: ClassVar[int] = len(SPACINGS) * len(GAPS) * 2
    gap: float = 5e-4
    heun: bool = False

    @property
    def given(self) -> dict[str, Any]:
        """In diffusers' words."""
        return {"gap": self.gap, "solver_type": "heun" if self.heun else "midpoint"}

    def acting(self, steps: int) -> DPMSolverPP:
        """The first and the last step are of first order."""
        found = super().acting(steps)
        return replace(found, heun=found.heun and steps > 2)


@dataclass(frozen=True, kw_only=True)
class UniPC(Solver):
    """UniPC with B2(h); with B1(h), diffusers gives no numbers where a run ends without noise.

    Args:
        gap: how far below 1 the first noise level lies at least.
        order: of the predictor.
        corrector: whether steps are corrected, which costs no call.
    """

    name: ClassVar[str] = "unipc"
    choices: ClassVar[dict[str, tuple[Any, ...]]] = {
        "gap": GAPS,
        "order": UNIPC_ORDERS,
        "corrector": (True, False),
    }
    candidates: ClassVar[int] = len(SPACINGS) * len(GAPS) * len(UNIPC_ORDERS) * 2
    gap: float = 1e-6
    order: int = 2
    corrector: bool = True

    @property
    def given(self) -> dict[str, Any]:
        """In diffusers' words."""
        off = [] if self.corrector else list(range(self.asked(self.steps)))
        return {"gap": self.gap, "solver_order": self.order, "disable_corrector": off}

    def acting(self, steps: int) -> UniPC:
        """The order rises from one and falls back to it; what the last step corrects, it forgets."""
        found = super().acting(steps)
        return replace(found, order=min(found.order, (steps + 1) // 2), corrector=found.corrector or steps <= 2)


SOLVERS: dict[str, type[Solver]] = {kind.name: kind for kind in (IPNDM, DPMSolverPP, UniPC)}
