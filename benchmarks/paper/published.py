"""Figures that the paper prints, by case and method; every table says where it is from.

Methods and metrics have budcache's names: "authors" is the paper's own BudCache. The paper prints latencies; calls
follow from them at about 0.23 s a call.
"""

from __future__ import annotations

from collections.abc import Sequence

Figures = dict[str, float]
Cases = dict[str, dict[str, Figures]]  # by case, then by method

# What the paper searches on, for every model (appendix A).
PROMPTS = ("In a still frame, a stop sign.", "a laptop, frozen in time.")


def _row(names: str, *values: float) -> Figures:
    return dict(zip(names.split(), values, strict=True))


_MAIN = "seconds speedup lpips ssim psnr imagereward clip-b clip-l hpsv2"
MAIN_SOURCE = "Table 1: FLUX.1-dev, 28 steps, DrawBench, H100"
MAIN: Cases = {
    "8 calls": {
        "ertacache": _row(_MAIN, 2.30, 3.00, 0.3208, 0.7603, 20.343, 0.9243, 32.387, 27.516, 0.2835),
        "authors": _row(_MAIN, 2.30, 3.00, 0.2479, 0.7917, 22.163, 0.9495, 32.392, 27.474, 0.2884),
    },
    "9 calls": {
        "taylorseer": _row(_MAIN, 2.45, 2.82, 0.4490, 0.6454, 16.092, 0.8857, 32.164, 27.264, 0.2841),
        "magcache": _row(_MAIN, 2.52, 2.74, 0.2498, 0.7854, 20.893, 0.9544, 32.346, 27.525, 0.2910),
        "dicache": _row(_MAIN, 2.59, 2.66, 0.3286, 0.7708, 21.670, 0.8091, 32.321, 27.463, 0.2707),
        "authors": _row(_MAIN, 2.52, 2.74, 0.2020, 0.8201, 23.586, 0.9633, 32.422, 27.598, 0.2921),
    },
    "10 calls": {
        "lemica": _row(_MAIN, 2.75, 2.51, 0.3138, 0.7397, 18.411, 0.9750, 32.369, 27.555, 0.2933),
        "teacache": _row(_MAIN, 2.75, 2.51, 0.3218, 0.7362, 18.401, 0.9708, 32.285, 27.505, 0.2904),
        "authors": _row(_MAIN, 2.75, 2.51, 0.1759, 0.8374, 24.903, 0.9782, 32.446, 27.584, 0.2940),
    },
}

_SHORT = "lpips ssim psnr"
_REWARDS = "imagereward clip-l hpsv2"
TRANSFER_SOURCE = (
    "Tables 3 and 11: FLUX.1-dev, DrawBench, a policy of 10 calls searched with Euler, 1024x1024, guidance 3.5"
)
TRANSFER: Cases = {
    "iPNDM(2M)": {
        "teacache": _row(f"{_SHORT} {_REWARDS}", 0.4124, 0.6569, 15.35, 0.9387, 27.52, 0.2908),
        "authors": _row(f"{_SHORT} {_REWARDS}", 0.1632, 0.8337, 23.80, 0.9484, 27.57, 0.2959),
    },
    "DPM-Solver++(2M)": {
        "teacache": _row(f"{_SHORT} {_REWARDS}", 0.3912, 0.6717, 15.97, 0.9576, 27.46, 0.2917),
        "authors": _row(f"{_SHORT} {_REWARDS}", 0.1668, 0.8333, 23.80, 0.9778, 27.40, 0.2955),
    },
    "half the size": {
        "teacache": _row(f"{_SHORT} {_REWARDS}", 0.3154, 0.6693, 16.77, 0.9289, 27.29, 0.2898),
        "authors": _row(f"{_SHORT} {_REWARDS}", 0.1167, 0.8465, 24.70, 0.9787, 27.71, 0.2976),
    },
    "three quarters of the height": {
        "teacache": _row(f"{_SHORT} {_REWARDS}", 0.3634, 0.6969, 16.91, 0.8207, 27.45, 0.2772),
        "authors": _row(f"{_SHORT} {_REWARDS}", 0.1370, 0.8663, 25.47, 0.8586, 27.55, 0.2859),
    },
    "guidance 5": {
        "teacache": _row(f"{_SHORT} {_REWARDS}", 0.3749, 0.6878, 16.49, 0.9419, 27.42, 0.2898),
        "authors": _row(f"{_SHORT} {_REWARDS}", 0.1536, 0.8560, 24.75, 0.9660, 27.41, 0.2949),
    },
    "guidance 7": {
        "teacache": _row(f"{_SHORT} {_REWARDS}", 0.4254, 0.6656, 15.60, 0.8343, 27.14, 0.2838),
        "authors": _row(f"{_SHORT} {_REWARDS}", 0.1649, 0.8380, 24.42, 0.9458, 27.29, 0.2957),
    },
}

LOW_SOURCE = "Table 4: FLUX.1-dev, DrawBench"
_LOW = "seconds imagereward clip-l hpsv2"
LOW: Cases = {
    "5 calls": {
        "fewer-steps": _row(_LOW, 1.61, 0.5896, 27.184, 0.2583),
        "policy:fewer steps, aligned": _row(_LOW, 1.61, 0.5991, 27.169, 0.2601),
        "authors": _row(_LOW, 1.64, 0.7808, 27.322, 0.2657),
        "policy:published search, aligned": _row(_LOW, 1.64, 0.7888, 27.442, 0.2682),
    },
    "6 calls": {
        "fewer-steps": _row(_LOW, 1.83, 0.7236, 27.286, 0.2622),
        "policy:fewer steps, aligned": _row(_LOW, 1.83, 0.7136, 27.273, 0.2632),
        "authors": _row(_LOW, 1.85, 0.8221, 27.370, 0.2712),
        "policy:published search, aligned": _row(_LOW, 1.85, 0.8289, 27.355, 0.2742),
    },
    "7 calls": {
        "fewer-steps": _row(_LOW, 2.05, 0.8519, 27.437, 0.2801),
        "policy:fewer steps, aligned": _row(_LOW, 2.05, 0.8099, 27.469, 0.2804),
        "authors": _row(_LOW, 2.06, 0.8895, 27.423, 0.2807),
        "policy:published search, aligned": _row(_LOW, 2.06, 0.9004, 27.603, 0.2861),
    },
}
ALIGNMENT_SOURCE = "Table 10: 100 prompts on four H100"
ALIGNMENT_SECONDS = {5: 226, 6: 267, 7: 338}

WAN_SOURCE = "Table 2: Wan2.1-T2V-1.3B, 100 prompts, A800"
WAN: dict[str, Figures] = {
    "full": {"seconds": 189.0},
    "teacache": _row("seconds psnr ssim lpips", 100.0, 21.52, 0.7494, 0.1929),
    "authors": _row("seconds psnr ssim lpips", 82.0, 25.93, 0.8502, 0.1167),
}

NEAR = 3  # calls from a budget at which a figure of the paper still stands beside it: part of its time is no call


def wan(budgets: Sequence[int]) -> tuple[Cases, Cases]:
    """The paper's figures of videos beside the budget that they are of, and those of no budget by their calls."""
    beside, elsewhere = Cases(), Cases()
    for name in ("teacache", "authors"):
        calls = 50 * WAN[name]["seconds"] / WAN["full"]["seconds"]
        nearest = min(budgets, key=lambda budget: abs(budget - calls))
        near = abs(nearest - calls) <= NEAR
        case, those = (f"{nearest} calls", beside) if near else (f"about {int(calls)}", elsewhere)
        those.setdefault(case, {})[name] = WAN[name]
    return beside, elsewhere


PROMPT_SET_SOURCE = "Table 5: FLUX.1-dev, a policy of 10 calls on GenEval's prompts"
PROMPT_SET: dict[str, Figures] = {
    "teacache": _row(f"{_SHORT} {_REWARDS}", 0.3349, 0.7586, 18.56, 0.9393, 27.85, 0.2995),
    "authors": _row(f"{_SHORT} {_REWARDS}", 0.1388, 0.8802, 26.57, 0.9710, 27.83, 0.3055),
}

FEW_STEPS_SOURCE = "Table 6: Hyper-SD, 8 steps, DrawBench"
FEW_STEPS: dict[str, Figures] = {
    "teacache": _row(f"{_SHORT} {_REWARDS}", 0.1982, 0.7631, 21.56, 0.9873, 27.43, 0.3038),
    "authors": _row(f"{_SHORT} {_REWARDS}", 0.1417, 0.8122, 25.28, 1.0096, 27.58, 0.3061),
}

MODEL_SIZE_SOURCE = "Table 7: Wan2.1-T2V-14B with the mask of the 1.3B model, 30 prompts"
MODEL_SIZE: dict[str, Figures] = {
    "teacache": _row(f"seconds {_SHORT}", 291.0, 0.0639, 0.8932, 26.70),
    "authors": _row(f"seconds {_SHORT}", 223.0, 0.0618, 0.8932, 27.94),
}

INTENSITY_SOURCE = "Tables 8 and 9: FLUX.1-dev, one H100"
# Masks scored and seconds, by search and budget.
EFFICIENCY: dict[tuple[str, int], tuple[int, int]] = {
    ("r1-sa20", 8): (94, 357),
    ("r1-sa20", 9): (125, 535),
    ("r1-sa20", 10): (127, 604),
    ("r2-sa100", 8): (290, 1103),
    ("r2-sa100", 9): (365, 1561),
    ("r2-sa100", 10): (427, 2027),
}
# At 9 calls. The relative gaps that the paper calls negligible: -0.81, 0.58, 1.08 and 1.07 %.
INTENSITY: dict[str, Figures] = {
    "r1-sa20": _row("lpips psnr ssim imagereward", 0.2020, 23.586, 0.8201, 0.9633),
    "r2-sa100": _row("lpips psnr ssim imagereward", 0.2036, 23.722, 0.8290, 0.9737),
}

STEPS_SOURCE = "Figure 7: FLUX.1-dev, 10 calls"
STEPS_BEST = 30  # the number of steps at which the printed curve has its top; the figure gives no numbers
CONVERGENCE_SOURCE = "Figure 5: FLUX.1-dev"
