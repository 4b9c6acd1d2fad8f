"""What charts show is prepared once; pages and plots draw the same."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from comparisons import PSNR, comparison
from hypothesis import given
from hypothesis import strategies as st

from budcache import Ladder, Mask, Policy
from budcache.comparison import best_other
from budcache.events import Scored
from budcache.report import plots, rendering, svg
from budcache.report.charts import Scoring, convergence, curve, strips, styles, ticks
from budcache.report.strips import strip
from budcache.report.text import strip as printed


@pytest.fixture
def axes():
    from matplotlib.figure import Figure

    return Figure().add_subplot()


def test_a_curve_has_a_point_where_each_method_ended_up():
    found = comparison()
    chart = curve(found, PSNR)
    assert chart.lines[-1].style.strong, "ours lies above the others"
    for line in chart.lines:
        (method,) = [name for name, title in found.methods.items() if title == line.title]
        for mark, budget in zip(line.marks, found.budgets, strict=True):
            entry = found.entry(method, budget)
            summed = entry.summed(PSNR)
            assert (mark.x, mark.y, mark.error) == (entry.mean_calls, summed.mean, summed.error)
            assert PSNR.written(summed.mean) in mark.note
            assert f"5th percentile {PSNR.written(summed.tail)}" in mark.note


def test_page_and_plot_draw_the_same_curve(axes):
    chart = curve(comparison(), PSNR)
    plots.draw(axes, chart)
    drawn = {line.get_label(): line for line in axes.get_lines()}
    assert len(axes.collections) == len(chart.lines), "each has its band"
    for _, it in svg.placed(chart).sizes:
        assert len(it["lines"]) == len(chart.lines)
        for line, placed in zip(chart.lines, it["lines"], strict=True):
            assert np.allclose(drawn[line.title].get_xdata(), [mark.x for mark in line.marks])
            assert np.allclose(drawn[line.title].get_ydata(), [mark.y for mark in line.marks])
            # In a picture, higher is a smaller number.
            ys = [-mark["y"] for mark in reversed(placed["marks"])]
            assert np.all(np.argsort(ys) == np.argsort([mark.y for mark in line.marks]))
            for mark in placed["marks"]:
                low, high = mark["ends"]
                assert low > mark["y"] > high
                assert it["left"] <= mark["x"] <= it["right"]


def test_bands_are_one_standard_error_wide_and_points_alone_have_whiskers():
    (_, it), *_ = svg.placed(curve(comparison(), PSNR)).sizes
    for line in it["lines"]:
        corners = {tuple(map(float, corner.split())) for corner in re.split("[MLZ]", line["band"]) if corner}
        assert corners == {(mark["x"], end) for mark in line["marks"] for end in mark["ends"]}
    (_, it), *_ = svg.placed(curve(comparison(budgets=(5,)), PSNR)).sizes
    assert all(line["band"] == "" and line["marks"][0]["ends"] for line in it["lines"])


def test_at_one_budget_methods_stand_side_by_side_in_order():
    chart = curve(comparison(budgets=(5,)), PSNR)
    for _, it in svg.placed(chart).sizes:
        marks = [
            (line["marks"][0]["x"], mark.y)
            for line, (mark,) in zip(it["lines"], (each.marks for each in chart.lines), strict=True)
        ]
        assert sorted(marks) == sorted(marks, key=lambda mark: mark[1]), "the higher, the further to the right"
        assert len({x for x, _ in marks}) == len(marks), "nobody hides another"
        assert all(it["left"] < x < it["right"] for x, _ in marks)
        assert not it["columns"], "where they stand says nothing of calls"
    assert "5 model calls" in chart.x and "at 5 model calls" in chart.about


def test_at_one_budget_the_name_of_who_made_other_calls_says_so():
    found = comparison(budgets=(5,))
    entries = [
        entry.model_copy(update={"calls": (8,) * len(entry.calls)}) if entry.method == "teacache" else entry
        for entry in found.entries
    ]
    names = [line.title for line in curve(found.model_copy(update={"entries": tuple(entries)}), PSNR).lines]
    assert [name for name in names if "calls" in name] == ["teacache, 8 calls"]


@given(st.lists(st.floats(-50, 450), min_size=1, max_size=24))
def test_names_lie_apart_in_the_order_of_their_lines(wanted):
    gap, low, high = 15, 0, 24 * 15
    found = svg.apart(wanted, gap, low, high)
    ordered = [found[i] for i in sorted(range(len(wanted)), key=lambda i: wanted[i])]
    assert all(b - a >= gap - 1e-6 for a, b in pairwise(ordered))
    assert low - 1e-6 <= ordered[0]
    assert ordered[-1] <= high + 1e-6
    free = sorted(wanted)
    if all(b - a > gap for a, b in pairwise(free)) and free[0] >= low and free[-1] <= high:
        assert found == pytest.approx(wanted), "what is apart already stays where it is"


def test_thirty_methods_can_be_told_apart_without_colours():
    looks = styles(comparison(methods=("budcache", "budcache-plain", *(f"method {i}" for i in range(28)))))
    assert len({(look.shape, look.dash, look.strong) for look in looks.values()}) == 30
    assert looks["budcache"].dash == ""


def test_sixteen_methods_have_sixteen_colours():
    looks = styles(comparison(methods=tuple(f"method {i}" for i in range(30))))
    colours = [look.colour for look in looks.values()]
    assert len(set(colours[:16])) == 16 and colours[16:] == colours[:14], "they repeat as late as they can"
    assert len(set(looks.values())) == 30
    sheet = (rendering.TEMPLATES / "colours.css").read_text()
    assert all(f".{colour} {{ --own: var(--{colour}); }}" in sheet for colour in colours)


def test_figures_below_a_curve_are_budgets_that_were_measured():
    for _, it in svg.placed(curve(comparison(budgets=(6, 10)), PSNR)).sizes:
        assert [name for _, name in it["columns"]] == ["6", "10"]
    (_, wide), (_, narrow) = svg.placed(
        curve(comparison(budgets=tuple(range(1, 12)), methods=("uniform", "budcache")), PSNR)
    ).sizes
    names = [[name for _, name in it["columns"]] for it in (wide, narrow)]
    assert names[0] == [str(budget) for budget in range(1, 12)]
    assert 1 < len(names[1]) < 9 and all(name.isdigit() for name in names[1]), "where there are many, whole numbers"


def test_the_best_rivals_error_is_shown_beside_ours():
    found = comparison()
    chart = curve(found, PSNR)
    (rival,) = [line.title for line in chart.lines if line.rival]
    assert rival == best_other(found, 5, PSNR).title
    html = rendering.environment().from_string('{% from "chart.html.jinja" import chart %}{{ chart(it, "x") }}')
    assert html.render(it=svg.placed(chart)).count(" rival") == 2, "wide and narrow"


def test_every_colour_of_the_page_can_be_read_on_its_ground():
    """Contrast AA, 4.5 to 1, in both themes: names of lines are written in the colours of the lines."""
    sheet = (rendering.TEMPLATES / "colours.css").read_text()
    colours = {name: both for name, *both in re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", sheet)}
    assert {"ink", "soft", "ours", "near", "bad", *(f"c{i}" for i in range(16))} <= set(colours)

    def light(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return np.dot([0.2126, 0.7152, 0.0722], linear)

    def contrast(one, other):
        dark, bright = sorted((light(one), light(other)))
        return (bright + 0.05) / (dark + 0.05)

    for theme in (0, 1):
        for name in colours.keys() - {"ground", "card", "line", "edge", "faint", "tint", "on"}:
            for ground in ("card", "ground", "tint") if name in ("ink", "soft", "ours") else ("card",):
                assert contrast(colours[name][theme], colours[ground][theme]) >= 4.5, (name, ground, theme)
        assert contrast(colours["on"][theme], colours["ours"][theme]) >= 4.5


def test_the_best_so_far_only_falls_and_stays_to_the_end():
    losses = [3.0, 5.0, 2.0, 2.5, 0.0, 1.0, 4.0]
    history = [Scoring(2, loss, 10 * i, "ladder") for i, loss in enumerate(losses)] + [Scoring(3, 0.5, 90, "polish")]
    chart = convergence(history, [2, 3, 4], "sample-calls")
    two, three = chart.lines
    assert [(mark.x, mark.y) for mark in two.marks] == [(0, 3.0), (20, 2.0), (50, 1.0), (90, 1.0)]
    assert [(mark.x, mark.y) for mark in three.marks] == [(90, 0.5)] * 2
    assert {phase: len(points) for phase, points in chart.dots.items()} == {"ladder": 6, "polish": 1}
    assert [mark.note for mark in two.marks[1:]] == [
        "2 calls: best loss 2 after 20 sample-calls",
        "2 calls: best loss 1 after 50 sample-calls",
        "",
    ]
    assert two.marks[-1].label == "2 calls"
    for _, it in svg.placed(chart).sizes:
        assert [len(line["marks"]) for line in it["lines"]] == [3, 1], "what can be tapped"
    assert convergence([], [2], "") is None
    assert convergence(history, [4], "") is None


def test_a_plot_of_a_search_has_lines_for_what_was_searched_for(axes):
    masks = [Mask.of(6, [0, k]) for k in (1, 2, 3)]
    history = [Scored(mask, 1 / (1 + i), "anneal", i, new=True) for i, mask in enumerate(masks)]
    history.append(Scored(Mask.of(6, [0]), 9.0, "climb", 5, new=True))  # on the way, not searched for
    plots.convergence(axes, history)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["anneal", "climb", "best of 2 calls"]
    assert axes.get_yscale() == "log"


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=9), min_size=1, max_size=5))
def test_a_strip_tells_the_share_that_computed_each_step(rest):
    masks = [Mask((True, *bits)) for bits in rest]
    found = strip(masks, "TeaCache", "some masks")
    longest = max(map(len, masks))
    assert len(found.shares) == longest
    assert sum(found.shares) * len(masks) == pytest.approx(sum(mask.budget for mask in masks))
    # Runs that start midway have only the last steps.
    for back in range(1, longest + 1):
        computed = [len(mask) >= back and mask[len(mask) - back] for mask in masks]
        assert found.shares[-back] == pytest.approx(sum(computed) / len(masks))
    assert found.about == f"TeaCache computes steps {', '.join(map(str, found.computed))} of {longest}"


def test_terminal_notebook_and_plot_have_the_same_strips(axes):
    policies = [Policy(mask=Mask.of(7, [0, 2, 5])), Policy(mask=Mask.of(7, [0, 1, 2, 6]))]
    assert [printed(policy.mask) for policy in policies] == ["█·█··█·", "███···█"]
    html = Ladder.of(policies)._repr_html_()
    assert html.count("#2f6fed") == 3 + 4
    assert 'aria-label="computes steps 0, 2, 5 of 7"' in html
    plots.masks(axes, {str(policy.budget): policy.mask for policy in policies})
    (image,) = axes.get_images()
    assert np.array_equal(image.get_array() > 0.5, [policy.mask.bits for policy in policies])


def test_strips_say_how_many_masks_there_were():
    found = comparison()
    notes = {each.title: each.note for each in strips(found, found.at(5))}
    assert notes["teacache"] == "3 masks"
    fewer = found.entry("uniform", 5).model_copy(update={"masks": (Mask.full(5),) * 3})
    one = found.entry("uniform", 5).model_copy(update={"masks": (Mask.uniform(12, 5),) * 3})
    assert [each.note for each in strips(found, [fewer, one])] == ["its own 5 steps", "one mask"]


@given(st.floats(-1e4, 1e4), st.floats(1e-3, 1e4), st.integers(1, 12))
def test_ticks_are_round_and_inside(low, size, wanted):
    found = ticks(low, low + size, wanted)
    assert len(found) <= wanted + 2
    assert all(low - 1e-6 <= tick <= low + size + 1e-6 for tick in found)
    gaps = np.diff(found)
    assert np.allclose(gaps, gaps[0] if len(gaps) else 0, rtol=1e-3, atol=1e-6)
