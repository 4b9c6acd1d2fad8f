"""Alignment without a pipeline: gradients are right, the start is met, and nothing gets worse."""

from __future__ import annotations

import gc
import json
import weakref
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial

import pytest
import torch
from levels import plain
from toys import SOLVERS, STEPS, Live, Residual, Toy

from budcache import Mask, SearchError
from budcache.numerics.rollout import rollout
from budcache.refine import Learned, Lesson, Update, align
from budcache.refine.align import student

MASK = Mask.parse("110100100100")
WEIGHTS = ((1.0,), (1.2, -0.2), (1.5, -0.6, 0.1), (1.3, -0.3), (0.9,))


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
        return student(toy, MASK, with_ends(toy, inner), rows or None)

    assert torch.autograd.gradcheck(final, (inner, *rows))


@pytest.mark.parametrize("kind", [Toy, Residual], ids=["output", "residual"])
def test_the_student_is_a_rollout_evaluated_once_more_on_the_way_back(kind):
    toy = kind(0, 2)
    levels = (toy.sigmas * 0.98).requires_grad_()
    output = student(toy, MASK, levels)
    assert torch.equal(output, rollout(kind(0, 2), toy.noise, levels.detach(), MASK))
    assert toy.calls == MASK.budget
    output.square().sum().backward()
    assert toy.calls == 2 * MASK.budget


def slopes(run, kind):
    """The gradient of a rollout's end in its levels."""
    toy = kind(0)
    levels = toy.sigmas.clone().requires_grad_()
    return torch.autograd.grad(run(toy, levels).square().sum(), levels)[0]


def test_what_a_residual_holds_has_no_gradient():
    """As in the authors' code: reused, it is a constant."""

    def recorded(toy, levels):
        return rollout(toy, toy.noise, levels, MASK)

    ours = slopes(lambda toy, levels: student(toy, MASK, levels), Live)
    torch.testing.assert_close(ours, slopes(recorded, Residual))
    assert (ours - slopes(recorded, Live)).abs().max() > 1e-3


@pytest.mark.parametrize("kind", [Toy, Residual], ids=["output", "residual"])
def test_nothing_of_a_lesson_is_kept_when_it_is_over(kind):
    """Or memory would grow with every update."""
    toy = kind(0, 2)
    known = weakref.ref(toy)
    levels = toy.sigmas.clone().requires_grad_()
    student(toy, MASK, levels).square().sum().backward()
    del toy
    gc.collect()
    assert known() is None


def test_with_euler_and_output_reuse_levels_inside_a_stretch_have_no_gradient():
    """F1: reused steps add up to one long step."""
    found = slopes(lambda toy, levels: student(toy, MASK, levels), Toy)
    inside = [k for k in range(STEPS) if not MASK[k]]
    assert found[inside].abs().max() < 1e-14
    assert found[list(MASK.computed)].abs().min() > 1e-6
    every = slopes(lambda toy, levels: student(toy, MASK, levels), Residual)
    assert every[:-1].abs().min() > 1e-6


# Learning


class Task:
    """Samples to learn on and others to judge by, with teachers of their own."""

    def __init__(self, mask, start, teacher_steps=60, lessons=30):
        self.mask, self.start, self.steps = mask, start, teacher_steps
        self.lessons = [partial(self.lesson, seed) for seed in range(lessons)]
        self.opened = []
        with self.lesson(range(1000, 1008)) as judge:
            self.judge = judge

    @contextmanager
    def lesson(self, seeds):
        seeds = [seeds] if isinstance(seeds, int) else seeds
        toy = Toy(seeds[0], steps=len(self.mask))
        toy.noise = torch.cat([Toy(seed).noise for seed in seeds])
        levels = Toy(0, steps=self.steps).sigmas
        teacher = rollout(toy, toy.noise, levels, Mask.full(self.steps))
        if len(seeds) == 1:
            self.opened.append(seeds[0])
        yield Lesson(toy, teacher)

    def loss(self, lesson, learned):
        levels = torch.tensor(learned.sigmas, dtype=torch.float64)
        end = rollout(lesson.run, lesson.run.noise, levels, self.mask, weights=learned.weights)
        return float(lesson.loss(end))

    def held_out(self, learned):
        return self.loss(self.judge, learned)

    def align(self, **options):
        return align(self.start, self.mask, self.lessons, self.held_out, **{"rate": 3e-2, **options})


def badly_placed(weights=None):
    """A short run whose steps crowd where little happens."""
    return Task(Mask.full(6), Learned(tuple((plain(6).double() ** 3).tolist()), weights))


def test_the_first_loss_is_that_of_the_start_to_the_last_bit():
    task = Task(MASK, Learned(tuple(Toy(0).sigmas.tolist()), WEIGHTS))
    aligned = task.align()
    with task.lesson(0) as first:
        assert aligned.updates[0].loss == task.loss(first, task.start)
    assert aligned.start_loss == task.held_out(task.start)


def test_a_badly_placed_schedule_is_improved():
    task = badly_placed()
    aligned = task.align(every=5, rate=0.15)
    assert aligned.best_loss < 0.5 * aligned.start_loss
    assert aligned.best_loss == task.held_out(aligned.best)
    assert [update.number for update in aligned.updates if update.held_out is not None] == [4, 9, 14, 19, 24, 29]
    assert task.opened == list(range(30))  # one pass, one lesson a time, in order
    levels = torch.tensor(aligned.best.sigmas)
    assert (levels.diff() < 0).all() and (levels[0], levels[-1]) == (1, 0)
    assert aligned.best.weights is None


def test_weights_are_learned_with_the_levels():
    start = Learned(tuple(Toy(0).sigmas.tolist()), tuple((1.0, 0.0, 0.0)[: min(row + 1, 3)] for row in range(5)))
    alone = Task(MASK, Learned(start.sigmas), STEPS).align()
    task = Task(MASK, start, STEPS)
    jointly = task.align()
    assert jointly.start_loss == alone.start_loss
    assert alone.best_loss < 0.9 * alone.start_loss
    assert jointly.best_loss < 0.9 * alone.best_loss
    assert [len(row) for row in jointly.best.weights] == [1, 2, 3, 3, 3]
    assert task.held_out(jointly.best) == jointly.best_loss


@pytest.mark.parametrize("rate", [1e-4, 0.3, 30.0])
def test_nothing_is_returned_that_is_worse_than_the_start(rate):
    task = Task(MASK, Learned(tuple(Toy(0).sigmas.tolist()), WEIGHTS), STEPS, lessons=8)
    aligned = task.align(rate=rate, every=1)
    assert aligned.best_loss == task.held_out(aligned.best)
    assert aligned.best_loss == min(aligned.start_loss, *(update.held_out for update in aligned.updates))


def test_where_nothing_helps_the_start_is_returned_itself():
    task = badly_placed()
    aligned = align(task.start, task.mask, task.lessons[:4], lambda learned: float(learned != task.start), rate=0.1)
    assert aligned.best is task.start
    assert (aligned.start_loss, aligned.best_loss) == (0.0, 0.0)


def test_the_first_update_tells_where_it_began():
    aligned = badly_placed().align()
    assert aligned.updates[0].start == aligned.start_loss
    assert all(update.start is None for update in aligned.updates[1:])


def test_in_the_geometric_mean_a_lesson_counts_relative_to_its_error():
    """The first update's moments are those of the gradient: that of a logarithm is the gradient over the error."""
    plain, relative = (badly_placed().align(mean=mean).updates[0] for mean in ("arithmetic", "geometric"))
    assert plain.loss == relative.loss
    slopes = torch.tensor(plain.moments[0]), torch.tensor(relative.moments[0])
    torch.testing.assert_close(slopes[1], slopes[0] / plain.loss)


def test_an_interrupted_alignment_goes_on_as_if_it_had_not_been():
    """From any update, and through JSON, as a ledger keeps them: bit for bit."""
    task = badly_placed(((1.0,), (1.1, -0.1), (1.0,), (1.0,), (1.0,), (1.0,)))
    seen = []
    whole = task.align(every=4, watch=seen.append)
    assert seen == whole.updates
    for done in (1, 4, 17, len(seen)):
        kept = [Update(**entry) for entry in json.loads(json.dumps([asdict(update) for update in seen[:done]]))]
        kept = [replace(u, parameters=tuple(u.parameters), moments=tuple(map(tuple, u.moments))) for u in kept]
        task.opened.clear()
        later = []
        again = task.align(every=4, known=kept, watch=later.append)
        assert again == whole
        assert later == whole.updates[done:]
        assert task.opened == list(range(done, 30))


def test_the_learning_rate_falls_along_a_cosine():
    """A loss that is linear in what is learned: AdamW moves by the rate, whatever the slope."""
    task = badly_placed()
    aligned = task.align(rate=1e-3)
    first, *_, last = aligned.updates
    assert max(map(abs, first.parameters)) == pytest.approx(1e-3, rel=1e-3)
    moved = [a - b for a, b in zip(last.parameters, aligned.updates[-2].parameters, strict=True)]
    assert max(map(abs, moved)) < 1e-5


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"lessons": []}, "no samples to align on"),
        ({"rate": 0.0}, "Choose one above 0"),
        ({"rate": float("nan")}, "Choose one above 0"),
        ({"rate": float("inf")}, "Choose one above 0"),
        ({"every": 0}, "every 0 updates"),
    ],
    ids=str,
)
def test_what_cannot_be_aligned_is_refused(change, says):
    task = badly_placed()
    with pytest.raises(SearchError, match=says):
        align(**{"start": task.start, "mask": task.mask, "lessons": task.lessons, "held_out": task.held_out, **change})


def test_a_loss_that_is_no_number_is_said():
    task = badly_placed()

    @contextmanager
    def spoilt():
        with task.lesson(0) as lesson:
            yield Lesson(lesson.run, lesson.teacher * float("nan"))

    with pytest.raises(SearchError, match=r"loss of update 0 is nan\. Use a smaller learning rate than 0\.001"):
        align(task.start, task.mask, [spoilt], task.held_out)
