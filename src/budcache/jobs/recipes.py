"""Recipes: for models that people use, the search to start with. One table, from which all that is printed follows."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from budcache.errors import SearchError
from budcache.events import Planned
from budcache.jobs.estimate import estimate
from budcache.wording import nearest

__all__ = ["RECIPES", "Recipe", "recipe", "written"]


@dataclass(frozen=True)
class Recipe:
    """A search that makes sense for a model, and about how long its calls take.

    Args:
        model: the id on the hub.
        steps: K of the full run, as its authors recommend.
        budgets: model calls to search for.
        prompts: the set of ours to calibrate on.
        count: how many of them.
        guidance: scales to calibrate on in turn; none where the command line cannot name them.
        branches: how many the network is evaluated for at each step.
        negative: a negative prompt, where guidance is off without one.
        seconds: of one model call for one sample, with guidance where there is some.
        gpu: on what.
        known_from: where these seconds come from.
        is_flow: whether its noise levels mean to other runtimes what they mean here.
    """

    model: str
    steps: int
    budgets: tuple[int, ...]
    prompts: str
    count: int
    height: int
    width: int
    seconds: float
    gpu: str
    known_from: str
    frames: int | None = None
    guidance: tuple[float, ...] = ()
    branches: int = 2
    negative: str | None = None
    note: str = ""
    is_flow: bool = True

    @property
    def planned(self) -> Planned:
        """What the search costs, by `budcache.estimate`."""
        mixed = len(self.guidance) > 1  # weights look at the sample then
        guided = self.branches == 2
        return estimate(steps=self.steps, budgets=self.budgets, prompts=self.count, features=mixed, guided=guided)

    @property
    def minutes(self) -> float:
        """About how long the search takes on the GPU that is named."""
        return self.planned.sample_calls * self.seconds / 60

    @property
    def budgets_text(self) -> str:
        """The budgets as the command line takes them."""
        return ",".join(map(str, self.budgets))

    def search(self, out: str) -> list[str]:
        """The command, as words; `out` is the file to write."""
        words = ["budcache", "search", self.model, "--steps", str(self.steps), "--budgets", self.budgets_text]
        words += ["--prompts", self.prompts, "--count", str(self.count)]
        words += ["--height", str(self.height), "--width", str(self.width)]
        words += ["--frames", str(self.frames)] if self.frames is not None else []
        words += ["--guidance", ",".join(f"{scale:g}" for scale in self.guidance)] if self.guidance else []
        words += ["--negative", self.negative] if self.negative is not None else []
        return [*words, "--out", out]

    def then(self, out: str) -> dict[str, list[str]]:
        """What to do with the result, each as a command with what it is for."""
        middle = str(self.budgets[len(self.budgets) // 2])
        size = ["--height", str(self.height), "--width", str(self.width)]
        size += ["--frames", str(self.frames)] if self.frames is not None else []
        size += ["--guidance", f"{self.guidance[len(self.guidance) // 2]:g}"] if self.guidance else []
        size += ["--negative", self.negative] if self.negative is not None else []
        named = ["--policy", out, "--budget", middle]
        draw = ["budcache", "generate", self.model, *named, *size, "--prompt", "..."]
        compare = ["budcache", "compare", self.model, "--steps", str(self.steps), "--budgets", middle, *size]
        compare += ["--methods", "fewer-steps", "--policy", out, "--prompts", "yours.txt"]
        target = "comfyui" if self.is_flow else "diffusers"
        export = ["budcache", "export", out, "--to", target, "--budget", middle, "--out", f"{target}-policy"]
        export += ["--approximate"] * (self.branches == 2)  # rows for the branches apart are not carried anywhere
        return {
            "draw with it": draw,
            # It draws at the settings that the policy was made at.
            "check its promises on your machine": ["budcache", "check", self.model, *named],
            "compare it with fewer steps on prompts of your own": compare,
            "use it elsewhere (budcache export --help names the runtimes)": export,
            "share it": ["budcache", "push", out, "you/name"],
        }


_PAPER = "the BudCache paper"
_SCALED = "FLUX.1-dev's, scaled by parameters, tokens and guidance branches; not measured"

RECIPES = {
    "flux": Recipe(
        "black-forest-labs/FLUX.1-dev", 28, (6, 7, 8, 9, 10, 12), "images", 16, 1024, 1024,
        seconds=0.25, gpu="H100", known_from=f"{_PAPER}: 6.90 s for 28 steps",
        guidance=(2.5, 3.5, 5.0), branches=1,
    ),
    "wan": Recipe(
        "Wan-AI/Wan2.1-T2V-1.3B-Diffusers", 50, (12, 16, 20), "videos", 4, 480, 832,
        seconds=3.8, gpu="A800", known_from=f"{_PAPER}: 189 s for 50 steps",
        frames=81, guidance=(5.0,),
        note="A video's call is slow, so few prompts; more of them, by --count, make it better.",
    ),
    "qwen-image": Recipe(
        "Qwen/Qwen-Image", 50, (10, 14, 18), "images", 8, 1328, 1328,
        seconds=1.4, gpu="H100", known_from=_SCALED,
        negative=" ",
        note="Guidance is true_cfg_scale, on only with a negative prompt; from Python call={...} sets its scale.",
    ),
    "z-image": Recipe(
        "Tongyi-MAI/Z-Image", 50, (10, 14, 18), "images", 16, 1024, 1024,
        seconds=0.25, gpu="H100", known_from=_SCALED,
        guidance=(3.0, 4.0, 5.0),
        note="For Z-Image-Turbo: its own id, --steps 9 --budgets 4-8 --guidance 0.",
    ),
    "sd3": Recipe(
        "stabilityai/stable-diffusion-3.5-large", 28, (6, 8, 10, 12), "images", 16, 1024, 1024,
        seconds=0.33, gpu="H100", known_from=_SCALED,
        guidance=(3.5, 4.5, 7.0),
    ),
    "sdxl": Recipe(
        "stabilityai/stable-diffusion-xl-base-1.0", 30, (8, 10, 12, 15), "images", 16, 1024, 1024,
        seconds=0.1, gpu="H100", known_from=_SCALED,
        guidance=(5.0, 7.5), is_flow=False,
    ),
}  # fmt: skip


def recipe(name: str) -> Recipe:
    """The recipe of that name."""
    if name not in RECIPES:
        raise SearchError(f"there is no recipe {name!r}. {nearest(name, RECIPES)}")
    return RECIPES[name]


def written(words: list[str]) -> str:
    """A command as a shell takes it, an option a line where it is long."""
    parts, line = list[str](), ""
    for word in map(shlex.quote, words):
        if word.startswith("--") and len(line) + len(word) > 88:
            parts.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return " \\\n    ".join([*parts, line])
