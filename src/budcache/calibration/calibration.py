"""Calibration: samples with their noise and teacher frozen together, and the loss of any final latents on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from budcache.calibration.asking import Asked, Facts, Question, Scope, finite
from budcache.calibration.objectives import Objective, Run, latent_mse
from budcache.errors import SearchError
from budcache.mask import Mask
from budcache.numerics.memory import park, size_of, unpark
from budcache.numerics.rollout import State, coast, compute, ended, rollout
from budcache.numerics.shelf import Kept, Shelf
from budcache.numerics.solvers import Solver, first_order
from budcache.plan import Moves, Plan, Stretch
from budcache.policy import Policy
from budcache.records.gram import Array, gram_of

if TYPE_CHECKING:
    from budcache.calibration.pictures import Pictures
    from budcache.calibration.prefixes import Prefixes

__all__ = ["Calibration"]

T = TypeVar("T")


class Calibration(Asked):
    """Runs to imitate, held in this process, and how near final latents come to their teachers.

    Args:
        runs: one per sample, or per batch of samples; each is run in full once, for its teacher.
        objective: the loss of one run's final latents against the teacher's.
        teacher_sigmas: levels of another teacher, finer than the full run (F7); None is the full run itself.
        spent: sample-calls that were needed before, to be counted with the others.
        residual: whether reused steps repeat the trunk's residual instead of the output.
        record: whether the full runs are also kept as inner products (F10).
        taught: called after each full run with the sample-calls that these have taken so far.
        shelf: where the full runs' states wait; None is main memory.
        whole: whether the states on the way are kept; who only judges needs the last ones.
        switch: the step at which another expert takes over, whose fits are not to look back before it; None lets them.

    Attributes:
        calls: sample-calls so far: model evaluations times samples, the teacher's included.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        *,
        objective: Objective = latent_mse,
        teacher_sigmas: Tensor | None = None,
        spent: int = 0,
        residual: bool = False,
        record: bool = False,
        taught: Callable[[int], None] | None = None,
        shelf: Shelf | None = None,
        whole: bool = True,
        switch: int | None = None,
    ) -> None:
        if not runs:
            raise SearchError("there is nothing to calibrate on. Give at least one prompt.")
        for run in runs:
            _check_size(run)
        self.objective, self.residual, self._spent = objective, residual, spent
        self.shelf, self.switch, self._whole = shelf, switch, whole
        self._finer, self._record, self._taught = teacher_sigmas, record, taught
        self.runs = list(runs)
        self.facts: list[Facts] = []
        self._solvers: list[Solver] = []
        self._moves: dict[int, Moves] = {}
        self._teachers: list[Waiting] = []
        self._pictures: Pictures | None = None
        self._scopes: dict[Scope, Prefixes] = {}
        self._finals: dict[tuple[int, Any, int], Tensor] = {}  # by who wants them kept, what they are of, and the run
        for run in self.runs:
            self._add(run)

    def add(self, run: Run) -> None:
        """One run more, which is run in full for its teacher."""
        _check_size(run)
        self._scopes.clear()  # whose states are of the runs before
        self.runs.append(run)
        self._add(run)

    def _add(self, run: Run) -> None:
        self._solvers.append(run.solver())
        states, gram = self._teach(run)
        self._teachers.append(states)
        self.facts.append(_facts(run, gram))
        if self._taught is not None:
            self._taught(self.calls)

    def ask(self, questions: Sequence[Question[T]]) -> Iterator[list[T]]:
        """See `Asked`."""
        for question in questions:
            yield [question.answer(self, number) for number in range(len(self.runs))]

    def each(self, question: Question[T], numbers: Sequence[int]) -> Iterator[tuple[int, T, int]]:
        """See `Asked`."""
        for number in numbers:
            before = self.calls
            found = question.answer(self, number)
            yield number, found, self.calls - before

    def prefixes(self, scope: Scope) -> Prefixes:
        """The states that are remembered. Of scopes that remember only the last walk, the last one is kept."""
        from budcache.calibration.prefixes import Prefixes

        if scope not in self._scopes:
            if not scope.memory:
                self._scopes = {each: states for each, states in self._scopes.items() if each.memory}
            self._scopes[scope] = Prefixes(self, scope.outputs, scope.memory, scope.branch, scope.switch)
        return self._scopes[scope]

    def forget(self, scope: Scope) -> None:
        """See `Asked`."""
        self._scopes.pop(scope, None)

    def final(self, owner: int, of: Any, number: int) -> Tensor | None:
        """One run's final latents that were kept."""
        return self._finals.get((owner, of, number))

    def keep_final(self, owner: int, of: Any, number: int, x: Tensor) -> None:
        """Keep final latents for somebody, until `forget_finals`."""
        self._finals[owner, of, number] = x

    def forget_finals(self, owner: int, but: frozenset[Any] = frozenset()) -> None:
        """See `Asked`."""
        self._finals = {key: x for key, x in self._finals.items() if key[0] != owner or key[1] in but}

    def looked_at(self, by: type[Pictures]) -> Pictures:
        """Who looks at the pictures of these runs; made once, for it keeps those of the full runs."""
        if self._pictures is None:
            self._pictures = by(self)
        return self._pictures

    @property
    def calls(self) -> int:
        """Model evaluations times samples; an objective that needs some of its own says how many in `calls`."""
        of_objective = int(getattr(self.objective, "calls", 0))
        return self._spent + sum(run.calls * len(run.noise) for run in self.runs) + of_objective

    def teacher(self, run: int) -> Tensor:
        """The final latents of the full run."""
        final: Tensor = self._teachers[run][-1]
        return final.to(self.runs[run].noise.device)

    def trajectory(self, run: int) -> Sequence[Tensor]:
        """The full run's latents at every step, and at the end; kept on the CPU or on disk, for they are many."""
        return self._teachers[run]

    def solver(self, run: int) -> Solver:
        """The run's solver, on its own noise levels."""
        return self._solvers[run]

    def moves(self, run: int) -> Moves:
        """The steps of the run's solver, to first order."""
        if run not in self._moves:
            self._moves[run] = first_order(self.solver(run), self.runs[run].sigmas, self.runs[run].noise.device)
        return self._moves[run]

    def finals(self, policy: Policy) -> list[Tensor]:
        """The final latents of every run under a policy, as it will be served; kept on the CPU."""
        self.check(policy.mask)
        stretches = Plan.of(policy, (), guided=self.is_guided).stretches
        return [self.rolled(number, stretches, policy.sigmas) for number in range(len(self.runs))]

    def rolled(self, number: int, stretches: tuple[Stretch, ...], sigmas: Sequence[float] | None = None) -> Tensor:
        """The final latents of one run along stretches, on noise levels of their own or on the run's."""
        run = self.runs[number]
        levels = run.sigmas if sigmas is None else torch.tensor(sigmas, dtype=run.sigmas.dtype)
        solver = self.solver(number) if sigmas is None else run.solver(levels)
        plan = Plan(levels, stretches, "residual" if self.residual else "output")
        return rollout(run, run.noise, plan, solver).cpu()

    def losses(self, finals: Sequence[Tensor]) -> tuple[float, ...]:
        """The loss of each sample."""
        pairs = zip(range(len(self.runs)), finals, strict=True)
        return tuple(loss for number, x in pairs for loss in self.losses_of(number, x))

    def losses_of(self, number: int, x: Tensor) -> tuple[float, ...]:
        """The loss of each sample of one run; that of the whole run where the objective tells no more."""
        run = self.runs[number]
        here = x.to(run.noise.device)
        found = torch.as_tensor(self.objective(here, self.teacher(number), run), dtype=torch.float64).cpu()
        if found.numel() not in (1, len(run.noise)):
            raise SearchError(
                f"the objective returned {found.numel()} numbers for a run of {len(run.noise)}. "
                "Return one number, or one for each sample."
            )
        return tuple(found.reshape(-1).expand(len(run.noise)).tolist())

    def checked_losses(self, mask: Mask, finals: Sequence[Tensor]) -> tuple[float, ...]:
        """The losses of a mask's final latents; they must be numbers."""
        return finite(mask, self.losses(finals))

    def _teach(self, run: Run) -> tuple[Waiting, Array | None]:
        """The teacher's states at every step of the run, and at the end; and the full run as inner products."""
        finer = self._finer
        levels = run.sigmas if finer is None else finer
        if abs(float(levels[0] - run.sigmas[0])) > 1e-3 * float(levels[0]):
            raise SearchError(
                f"a teacher of {len(levels) - 1} steps begins at the noise level {float(levels[0]):g}, the run of "
                f"{len(run.sigmas) - 1} steps at {float(run.sigmas[0]):g}, so it cannot teach it. Leave teacher_steps "
                'out, or give the scheduler timestep_spacing="trailing".'
            )
        solver = run.solver(finer)
        state, states, outputs = State(run.noise), Waiting(self.shelf), Waiting(self.shelf)
        states.add(run.noise.cpu())
        for k in range(len(levels) - 1):
            state = compute(run, state, levels)
            if self._record:
                outputs.add(state.outputs[0].cpu())
            state = ended(coast(state, state.outputs[0], k + 1, levels, solver))
            states.add(state.x.cpu())
            if not self._whole and finer is None and not self._record:
                states.only_last()
        if not torch.isfinite(states[-1]).all():
            raise SearchError(
                "the full run itself ends in numbers that are not finite. Check the model and its number format."
            )
        if finer is not None:
            states = states.at(run.sigmas, levels)
            outputs = outputs.at(run.sigmas[:-1], levels[:-1]) if len(outputs) else outputs
        gram = gram_of(states.parked, outputs.parked) if self._record else None
        if not self._whole:
            states.only_last()
        return states, gram


def _check_size(run: Run) -> None:
    if run.noise.numel() == 0:
        raise SearchError(
            f"the latents are empty (shape {tuple(run.noise.shape)}): "
            "the pictures are too small for this model. Choose a larger height and width."
        )


def _facts(run: Run, gram: Array | None) -> Facts:
    return Facts(
        samples=len(run.noise),
        sigmas=run.sigmas.detach().cpu(),
        guided=getattr(run, "conditional", None) is not None,
        coarse=getattr(run, "dtype", run.noise.dtype) in (torch.float16, torch.bfloat16),
        size=size_of(run.noise),
        gram=gram,
    )


class Waiting(Sequence[Tensor]):
    """The tensors of one run, one after the other; each comes off the shelf when it is asked for."""

    def __init__(self, shelf: Shelf | None) -> None:
        self.shelf = shelf
        self.parked: list[Tensor | Kept] = []

    def add(self, tensor: Tensor) -> None:
        """Put one behind the others."""
        self.parked.append(park(tensor, self.shelf))

    def only_last(self) -> None:
        """Let go of all but the last."""
        del self.parked[:-1]

    def at(self, sigmas: Tensor, levels: Tensor) -> Waiting:
        """The same run where it passes other levels."""
        found = Waiting(self.shelf)
        for sigma in sigmas:
            found.add(_between(self, levels, sigma))
        return found

    def __getitem__(self, place: Any) -> Any:
        found = self.parked[place]
        return [unpark(each) for each in found] if isinstance(place, slice) else unpark(found)

    def __len__(self) -> int:
        return len(self.parked)


def _between(states: Sequence[Tensor], levels: Tensor, sigma: Tensor) -> Tensor:
    """Where a run passes a level: one of its states, or between two of them on a straight line, as Euler goes."""
    behind = min(int((levels > sigma + 1e-6 * levels[0]).sum()), len(levels) - 1)
    if behind == 0 or abs(float(levels[behind] - sigma)) <= 1e-6 * float(levels[0]):
        return states[behind]
    before = behind - 1
    part = float((sigma - levels[before]) / (levels[behind] - levels[before]))
    return states[before] + part * (states[behind] - states[before])
