"""The mask: which steps compute the model and which reuse what is cached; and the run, what was really computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from budcache.errors import PolicyError
from budcache.wording import quote

__all__ = ["MAX_STEPS", "Computed", "Mask"]

MAX_STEPS = 1000  # more than any sampler takes; keeps a hostile file from asking for a billion


@dataclass(frozen=True)
class Mask:
    """K decisions, `bits[k]` being the paper's m_k: True computes step k, False reuses.

    >>> mask = Mask.parse("100110")
    >>> mask.budget, mask.computed, mask.segments
    (3, (0, 3, 4), ((0, 3), (3, 4), (4, 6)))
    """

    bits: tuple[bool, ...]

    def __post_init__(self) -> None:
        if isinstance(self.bits, str):  # every character of a text is true, so "10" would be two computed steps
            raise PolicyError(f"a mask is made of decisions, got the text {quote(self.bits)}. Read it with Mask.parse.")
        object.__setattr__(self, "bits", tuple(bool(bit) for bit in self.bits))
        if not self.bits:
            raise PolicyError("a mask needs at least one step, got none. Write it as '1' (compute) and '0' (reuse).")
        if len(self.bits) > MAX_STEPS:
            raise PolicyError(f"a mask of {len(self.bits)} steps is too long. Use at most {MAX_STEPS} steps.")
        if not self.bits[0]:
            raise PolicyError(f"mask {quote(str(self))} reuses step 0 with nothing cached yet. Make the first bit 1.")

    @classmethod
    def parse(cls, text: str) -> Mask:
        """Read a mask such as `"1011"`, one character a step."""
        # The length goes first, so that an absurd text is neither copied nor printed.
        if len(text) > MAX_STEPS:
            raise PolicyError(f"a mask of {len(text)} steps is too long. Use at most {MAX_STEPS} steps.")
        odd = sorted(set(text) - {"0", "1"})
        if odd:
            raise PolicyError(f"mask {quote(text)} contains {odd[0]!r}. Use only '1' (compute) and '0' (reuse).")
        return cls(tuple(character == "1" for character in text))

    @classmethod
    def of(cls, steps: int, computed: Iterable[int]) -> Mask:
        """The mask of `steps` steps that computes exactly at the given step indices."""
        if not 1 <= steps <= MAX_STEPS:
            raise PolicyError(f"a mask of {steps} steps is not possible. Use 1 to {MAX_STEPS} steps.")
        wanted = sorted(set(computed))
        if wanted and not 0 <= wanted[0] <= wanted[-1] < steps:
            outside = wanted[0] if wanted[0] < 0 else wanted[-1]
            raise PolicyError(f"step {outside} lies outside a run of {steps} steps. Use indices 0 to {steps - 1}.")
        chosen = set(wanted)
        return cls(tuple(k in chosen for k in range(steps)))

    @classmethod
    def full(cls, steps: int) -> Mask:
        """The mask that computes every step: the bare pipeline."""
        return cls.of(steps, range(steps))

    @classmethod
    def uniform(cls, steps: int, budget: int) -> Mask:
        """`budget` computed steps, spread as evenly as whole indices allow (Algorithm 1's start)."""
        if not 1 <= budget <= steps:
            raise PolicyError(f"a budget of {budget} does not fit {steps} steps. Choose a budget from 1 to {steps}.")
        return cls.of(steps, (i * steps // budget for i in range(budget)))

    @property
    def computed(self) -> tuple[int, ...]:
        """The indices of the computed steps, rising."""
        return tuple(k for k, bit in enumerate(self.bits) if bit)

    @property
    def budget(self) -> int:
        """B, the number of computed steps: model calls per sample."""
        return sum(self.bits)

    @property
    def segments(self) -> tuple[tuple[int, int], ...]:
        """Half-open ranges `(i, j)`: step i computes, i + 1 to j - 1 reuse it."""
        starts = self.computed
        return tuple(zip(starts, (*starts[1:], len(self.bits)), strict=True))

    def __len__(self) -> int:
        return len(self.bits)

    def __iter__(self) -> Iterator[bool]:
        return iter(self.bits)

    def __getitem__(self, step: int) -> bool:
        return self.bits[step]

    def __str__(self) -> str:
        return "".join("1" if bit else "0" for bit in self.bits)

    def __repr__(self) -> str:
        return f"Mask.parse('{self}')"


@dataclass(frozen=True)
class Computed:
    """What a run computed: for each of its steps, which of that step's calls of the model. Guidance may make two.

    Guidance branches may decide apart. A step of which one of two calls is computed counts half.

    >>> run = Computed.of(Mask.parse("110"), Mask.parse("100"))
    >>> run.calls, run.mask, run.branches
    (1.5, Mask.parse('110'), (Mask.parse('110'), Mask.parse('100')))
    """

    steps: tuple[tuple[bool, ...], ...]

    @classmethod
    def of(cls, *branches: Mask) -> Computed:
        """A run whose branches have these masks; one mask serves any number of branches."""
        return cls(tuple(zip(*branches, strict=True)))

    @property
    def mask(self) -> Mask:
        """The steps at which any branch was computed."""
        return Mask(tuple(map(any, self.steps)))

    @property
    def branches(self) -> tuple[Mask, ...]:
        """The mask of each branch, over the steps that have it: guidance may begin midway."""
        most = max(map(len, self.steps))
        return tuple(Mask(tuple(step[n] for step in self.steps if len(step) > n)) for n in range(most))

    @property
    def calls(self) -> float:
        """Model calls: a step counts by the share of its branches that were computed; whole numbers are integers."""
        total = round(float(sum(sum(step) / len(step) for step in self.steps if step)), 9)
        return int(total) if total.is_integer() else total
