"""Alignment without a pipeline: gradients are right, the start is met, and an interrupted descent goes on."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import asdict, replace

import pytest
import torch
from levels import plain
from toys import SOLVERS, STEPS, Live, Residual, Toy

from budcache import Mask, Policy, SearchError
from budcache.numerics.rollout import rollout
from budcache.plan import Plan
from budcache.refine.align import Descent, Lesson, Update, check_pace, student

MASK = Mask.parse("110100100100")
WEIGHTS = ((1.0,), (1.2, -0.2), (1.5, -0.6, 0.1), (1.3, -0.3), (0.9,))
KINDS = pytest.mark.parametrize("kind", [Toy, Residual], ids=["output", "residual"])


def planned(levels, rows=None, reuse="output"):
    """A plan on levels, and with blends, that may have gradients."""
    plan = Plan.of(Policy(mask=MASK, reuse=reuse), levels)
    stretches = [replace(each, blend=row) for each, row in zip(plan, rows or [None] * plan.calls, strict=True)]
    return replace(plan, stretches=tuple(stretches))


def reuse_of(kind):
    return "residual" if issubclass(kind, Residual) else "output"


def with_ends(toy, inner):
    """Levels that can be learned: the ends stay."""
    return torch.cat([toy.sigmas[:1], inner, toy.sigmas[-1:]])


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
@pytest.mark.parametrize("blended", [False, True], ids=["repeated", "blended"])
def test_gradients_in_levels_and_weights_agree_with_finite_differences(solver, blended):
    toy = Toy(0, 2, solver)
    inner = (toy.sigmas[1:-1] * 0.97).requires_grad_()
    rows = [torch.tensor(row, dtype=torch.float64, requires_grad=True) for row in WEIGHTS] if blended else []

    def final(inner, *rows):
        return student(toy, planned(with_ends(toy, inner), rows))

    assert torch.autograd.gradcheck(final, (inner, *rows))


@KINDS
def test_the_student_is_a_rollout_evaluated_once_more_on_the_way_back(kind):
    toy = kind(0, 2)
    levels = (toy.sigmas * 0.98).requires_grad_()
    output = student(toy, planned(levels, reuse=reuse_of(kind)))
    assert torch.equal(output, rollout(kind(0, 2), toy.noise, planned(levels.detach(), reuse=reuse_of(kind))))
    assert toy.calls == MASK.budget
    output.square().sum().backward()
    assert toy.calls == 2 * MASK.budget


def recorded(toy, plan):
    """A rollout that torch records as it is."""
    return rollout(toy, toy.noise, plan)


def slopes(run, kind):
    """The gradient of a rollout's end in its levels."""
    toy = kind(0)
    levels = toy.sigmas.clone().requires_grad_()
    return torch.autograd.grad(run(toy, planned(levels, reuse=reuse_of(kind))).square().sum(), levels)[0]


def test_what_a_residual_holds_has_no_gradient():
    """As in the authors' code: reused, it is a constant."""
    ours = slopes(student, Live)
    torch.testing.assert_close(ours, slopes(recorded, Residual))
    assert (ours - slopes(recorded, Live)).abs().max() > 1e-3


@KINDS
def test_nothing_of_a_lesson_is_kept_when_it_is_over(kind):
    """Or memory would grow with every update."""
    toy = kind(0, 2)
    known = weakref.ref(toy)
    levels = toy.sigmas.clone().requires_grad_()
    student(toy, planned(levels, reuse=reuse_of(kind))).square().sum().backward()
    del toy
    gc.collect()
    assert known() is None


def test_with_euler_and_output_reuse_levels_inside_a_stretch_have_no_gradient():
    """F1: reused steps add up to one long step."""
    found = slopes(student, Toy)
    inside = [k for k in range(STEPS) if not MASK[k]]
    assert found[inside].abs().max() < 1e-14
    assert found[list(MASK.computed)].abs().min() > 1e-6
    every = slopes(student, Residual)
    assert every[:-1].abs().min() > 1e-6


# Learning


class Task:
    """Samples to learn on, one at a time, and others to judge by, with teachers of their own."""

    def __init__(self, start, teacher_steps=60, lessons=30):
        self.start, self.teacher_steps, self.lessons = start, teacher_steps, lessons
        self.judge = self.lesson(*range(1000, 1008))

    def lesson(self, *seeds):
        toy = Toy(seeds[0], steps=self.start.steps)
        toy.noise = torch.cat([Toy(seed).noise for seed in seeds])
        full = Plan.of(Policy(mask=Mask.full(self.teacher_steps)), Toy(0, steps=self.teacher_steps).sigmas)
        return Lesson(toy, rollout(toy, toy.noise, full))

    def loss(self, lesson, policy):
        levels = torch.tensor(policy.sigmas, dtype=torch.float64)
        return float(lesson.loss(rollout(lesson.run, lesson.run.noise, Plan.of(policy, levels))))

    def held_out(self, policy):
        return self.loss(self.judge, policy)

    def descent(self, **options):
        return Descent(self.start, self.lessons, **{"rate": 3e-2, **options})

    def updates(self, descent, known=0, until=None):
        """The updates behind those that are known."""
        return [descent.update(number, self.lesson(number)) for number in range(known, until or self.lessons)]

    def learned(self, **options):
        """The policy that all updates together lead to."""
        descent = self.descent(**options)
        return descent.policy(self.updates(descent)[-1].parameters)


def policy(mask=MASK, sigmas=None, weights=None):
    levels = Toy(0, steps=len(mask)).sigmas if sigmas is None else sigmas
    return Policy(mask=mask, sigmas=tuple(levels.tolist()), weights=weights)


def badly_placed(weights=None):
    """A short run whose steps crowd where little happens."""
    return Task(policy(Mask.full(6), plain(6).double() ** 3, weights))


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["repeated", "blended"])
def test_the_first_loss_is_that_of_the_start_to_the_last_bit(weights):
    task = Task(policy(weights=weights))
    descent = task.descent()
    assert descent.update(0, task.lesson(0)).loss == task.loss(task.lesson(0), task.start)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["repeated", "blended"])
def test_parameters_of_nothing_learned_are_the_start(weights):
    start = policy(weights=weights)
    nothing = [0.0] * start.steps + [value for row in weights or () for value in row]
    assert Task(start).descent().policy(nothing) == start


def test_a_badly_placed_schedule_is_improved():
    task = badly_placed()
    learned = task.learned(rate=0.15)
    assert task.held_out(learned) < 0.5 * task.held_out(task.start)
    levels = torch.tensor(learned.sigmas)
    assert (levels.diff() < 0).all() and (levels[0], levels[-1]) == (1, 0)
    assert (learned.mask, learned.weights, learned.quality) == (task.start.mask, None, None)


def test_weights_are_learned_with_the_levels():
    rows = tuple((1.0, 0.0, 0.0)[: min(row + 1, 3)] for row in range(5))
    alone, jointly = Task(policy(), STEPS), Task(policy(weights=rows), STEPS)
    assert jointly.held_out(jointly.start) == alone.held_out(alone.start)
    learned = alone.learned(), jointly.learned()
    assert alone.held_out(learned[0]) < 0.9 * alone.held_out(alone.start)
    assert jointly.held_out(learned[1]) < 0.9 * alone.held_out(learned[0])
    assert [len(row) for row in learned[1].weights] == [1, 2, 3, 3, 3]
    assert learned[1].weights != rows and learned[1].sigmas != learned[0].sigmas


@pytest.mark.parametrize("rate", [0.3, 30.0])
def test_however_far_it_goes_the_levels_fall_and_their_ends_stay(rate):
    task = Task(policy(weights=WEIGHTS), STEPS, lessons=8)
    descent = task.descent(rate=rate)
    for update in task.updates(descent):
        found = descent.policy(update.parameters)  # validated: levels that do not fall are refused
        assert (found.sigmas[0], found.sigmas[-1]) == (task.start.sigmas[0], task.start.sigmas[-1])


def test_in_the_geometric_mean_a_lesson_counts_relative_to_its_error():
    """The first update's moments are those of the gradient: that of a logarithm is the gradient over the error."""
    task = badly_placed()
    plain, relative = (task.descent(mean=mean).update(0, task.lesson(0)) for mean in ("arithmetic", "geometric"))
    assert plain.loss == relative.loss
    slopes = torch.tensor(plain.moments[0]), torch.tensor(relative.moments[0])
    torch.testing.assert_close(slopes[1], slopes[0] / plain.loss)


def test_decoded_outputs_may_be_compared_instead():
    task = badly_placed()
    lesson = task.lesson(0)
    halved = replace(lesson, decoded=lambda x: x[..., :3] / 2)
    end = student(lesson.run, Plan.of(task.start, torch.tensor(task.start.sigmas, dtype=torch.float64)))
    expected = ((end - lesson.teacher)[..., :3] / 2).square().mean()
    assert task.descent().update(0, halved).loss == pytest.approx(float(expected))


def test_an_interrupted_descent_goes_on_as_if_it_had_not_been():
    """From any update, and through JSON, as a ledger keeps them: bit for bit."""
    task = badly_placed(((1.0,), (1.1, -0.1), (1.0,), (1.0,), (1.0,), (1.0,)))
    whole = task.updates(task.descent())
    assert [update.number for update in whole] == list(range(30))
    for done in (1, 4, 17, len(whole)):
        entry = json.loads(json.dumps(asdict(whole[done - 1])))
        entry |= {"parameters": tuple(entry["parameters"]), "moments": tuple(map(tuple, entry["moments"]))}
        descent = task.descent()
        descent.resume(Update(**entry))
        assert task.updates(descent, known=done) == whole[done:]


def test_the_learning_rate_falls_along_a_cosine():
    """A loss that is linear in what is learned: AdamW moves by the rate, whatever the slope."""
    task = badly_placed()
    first, *_, before, last = task.updates(task.descent(rate=1e-3))
    assert max(map(abs, first.parameters)) == pytest.approx(1e-3, rel=1e-3)
    moved = [a - b for a, b in zip(last.parameters, before.parameters, strict=True)]
    assert max(map(abs, moved)) < 1e-5


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"updates": 0}, "no samples to align on"),
        ({"start": Policy(mask=MASK)}, r"begins at a reference schedule\. Give the policy the pipeline's own sigmas"),
        ({"rate": 0.0}, "a learning rate of 0 learns nothing. Choose one above 0"),
        ({"rate": float("nan")}, "Choose one above 0"),
        ({"rate": float("inf")}, "Choose one above 0"),
    ],
    ids=str,
)
def test_what_cannot_be_aligned_is_refused(change, says):
    with pytest.raises(SearchError, match=says):
        Descent(**{"start": badly_placed().start, "updates": 3, **change})


def test_looking_never_is_refused():
    with pytest.raises(SearchError, match=r"every 0 updates\. Choose at least 1"):
        check_pace(1e-3, 0)


def test_a_loss_that_is_no_number_is_said():
    task = badly_placed()
    lesson = task.lesson(0)
    with pytest.raises(SearchError, match=r"loss of update 0 is nan\. Use a smaller learning rate than 0\.001"):
        task.descent(rate=1e-3).update(0, Lesson(lesson.run, lesson.teacher * float("nan")))
