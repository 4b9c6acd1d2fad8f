"""The clips and their captions: emoji that move, drawn by rule from the pictures of `data.py`.

`python video_data.py RUN` leaves three sets in RUN/clips: `train` and `held` (combinations of emoji and motion that
training never sees), 64 x 64, and `wide`, 96 x 64. Each is a folder of frames.npy (uint8, N x 17 x height x width x 3,
white background) and captions.json (which emoji, which motion).
"""

from __future__ import annotations

import argparse
import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from data import fetch, spellings
from PIL import Image
from torch.nn import functional as F

FRAMES = 17
# Emoji by their short names, with a plainer name where the short one is unclear.
EMOJI = """
grinning=grinning face, heart eyes=heart eyes face, sunglasses=face with sunglasses, cry=crying face,
scream=screaming face, nerd face, clown face, ghost, alien, robot face, jack o lantern=pumpkin, heart=red heart,
blue heart, green heart, yellow heart, purple heart, monkey face, dog=dog face, fox face, cat=cat face, lion face,
tiger=tiger face, horse=horse face, unicorn face, cow=cow face, pig=pig face, mouse=mouse face, rabbit=rabbit face,
bear=bear face, koala, panda face, frog, penguin, owl, chicken, baby chick, duck, flamingo, parrot, turtle,
dragon face, whale, dolphin, tropical fish, shark, octopus, crab, lobster, snail, butterfly, bee, ladybug,
cherry blossom, rose, hibiscus, sunflower, tulip, evergreen tree=pine tree, deciduous tree=green tree, palm tree,
cactus, four leaf clover=clover, maple leaf, mushroom, grapes, watermelon, tangerine=orange, lemon, banana, pineapple,
apple=red apple, green apple, pear, peach, cherries, strawberry, kiwifruit=kiwi, tomato, coconut, avocado, eggplant,
carrot, corn, hot pepper, broccoli, bread, croissant, pretzel, cheese wedge=cheese, hamburger, fries, pizza,
hotdog=hot dog, taco, popcorn, doughnut=donut, cookie, birthday=birthday cake, cupcake, candy, lollipop, honey pot,
coffee, beer, icecream=ice cream, earth africa=globe, house, tent, bus, fire engine=fire truck, police car, taxi,
car=red car, ring buoy, boat=sailboat, airplane, helicopter, rocket, flying saucer, alarm clock, crescent moon,
sun with face=sun, ringed planet=planet, star, rainbow, umbrella, snowman, fire, droplet=water drop,
zap=lightning bolt, christmas tree, balloon, gift, trophy, soccer=soccer ball, basketball, tennis=tennis racket,
8ball=eight ball, dart=dartboard, game die=die, teddy bear, crystal ball, crown, tophat=top hat, gem, bell, guitar,
camera, bulb=light bulb, closed book=red book, key, hammer, bomb, shield, gear, magnet, lock, coin, boot, bucket
"""


@dataclass(frozen=True)
class Pose:
    """Where one sprite is in one frame: middle and side in pixels, clockwise turn in radians."""

    x: float
    y: float
    size: float
    turn: float = 0.0


@dataclass(frozen=True)
class Scene:
    """What varies between clips of one caption; `middle` is the middle of the frame, `way` is 1 or -1."""

    middle: tuple[float, float]
    size: float
    speed: float
    way: int


def roll(scene: Scene, t: float, way: int) -> list[Pose]:
    """On a line, turning as a wheel would."""
    path = way * 24 * scene.speed * (t - 0.5)
    return [Pose(scene.middle[0] + path, scene.middle[1], scene.size, path / (scene.size / 2))]


def rise(scene: Scene, t: float) -> list[Pose]:
    x, y = scene.middle
    return [Pose(x, y + 12 - 24 * scene.speed * t**1.7, scene.size)]


def fall(scene: Scene, t: float) -> list[Pose]:
    x, y = scene.middle
    return [Pose(x, y - 12 + 24 * scene.speed * t**1.7, scene.size)]


def swell(scene: Scene, t: float) -> list[Pose]:
    return [Pose(*scene.middle, scene.size * (0.6 + 0.8 * scene.speed * t))]


def shrink(scene: Scene, t: float) -> list[Pose]:
    return [Pose(*scene.middle, scene.size * (1.4 - 0.8 * scene.speed * t))]


def spin(scene: Scene, t: float) -> list[Pose]:
    return [Pose(*scene.middle, scene.size, 1.5 * math.pi * scene.speed * t)]


def bounce(scene: Scene, t: float) -> list[Pose]:
    x, y = scene.middle
    return [Pose(x, y + 8 - 18 * scene.speed * abs(math.sin(2 * math.pi * t)), scene.size)]


def sway(scene: Scene, t: float) -> list[Pose]:
    """Like a pendulum that stands on the ground."""
    turn = scene.way * 0.45 * scene.speed * math.sin(2 * math.pi * t)
    x, y, arm = *scene.middle, scene.size / 2
    return [Pose(x + arm * math.sin(turn), y + arm - arm * math.cos(turn), scene.size, turn)]


def swap(scene: Scene, t: float) -> list[Pose]:
    """Two of them go round half a circle; the smooth start and end make it a change of places."""
    smooth = t * t * (3 - 2 * t)
    angle, (x, y) = scene.way * math.pi * smooth, scene.middle
    dx, dy = 14 * math.cos(angle), 10 * math.sin(angle)
    return [Pose(x - dx, y - dy, 0.68 * scene.size), Pose(x + dx, y + dy, 0.68 * scene.size)]


def stand(scene: Scene, t: float) -> list[Pose]:
    return [Pose(*scene.middle, scene.size)]


# What a motion is called (the first phrase is the one that prompts use) and how it goes.
MOTIONS = {
    "right": (["rolling to the right", "rolls to the right", "rolling right"], lambda s, t: roll(s, t, 1)),
    "left": (["rolling to the left", "rolls to the left", "rolling left"], lambda s, t: roll(s, t, -1)),
    "up": (["taking off", "takes off", "flying up"], rise),
    "down": (["falling down", "falls down", "falling"], fall),
    "grow": (["growing", "grows", "getting bigger"], swell),
    "shrink": (["shrinking", "shrinks", "getting smaller"], shrink),
    "spin": (["spinning", "spins", "spinning around"], spin),
    "bounce": (["bouncing", "bounces", "bouncing up and down"], bounce),
    "sway": (["swaying", "sways", "swaying from side to side"], sway),
    "swap": (["swapping places", "swap places", "changing places"], swap),
    "still": (["standing still", "", "not moving"], stand),
}


def chosen() -> dict[str, str]:
    """Short name to caption, in the order of EMOJI."""
    pairs = [entry.strip().split("=") for entry in EMOJI.replace("\n", " ").split(",")]
    return {pair[0]: pair[-1] for pair in pairs}


def names() -> list[str]:
    return list(chosen().values())


def sprites(package: Path) -> torch.Tensor:
    """The pictures with their transparency, premultiplied so that borders blend well: N x 4 x 64 x 64 in [0, 1]."""
    found = {}
    for entry in json.loads((package / "emoji.json").read_text()):
        if entry["has_img_google"]:
            found.setdefault(spellings(entry)[0], entry["image"])
    pictures = []
    for short in chosen():
        picture = Image.open(package / "img/google/64" / found[short]).convert("RGBA")
        rgba = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255
        pictures.append(torch.cat([rgba[:3] * rgba[3:], rgba[3:]]))
    return torch.stack(pictures)


def transform(pose: Pose, height: int, width: int) -> list[list[float]]:
    """From the frame's coordinates in [-1, 1] to the sprite's, as `affine_grid` wants it."""
    cos, sin = math.cos(pose.turn) / pose.size, math.sin(pose.turn) / pose.size
    x, y = 2 * pose.x - width, 2 * pose.y - height
    return [
        [cos * width, sin * height, -cos * x - sin * y],
        [-sin * width, cos * height, sin * x - cos * y],
    ]


def render(sprite: torch.Tensor, poses: list[list[Pose]], height: int, width: int) -> torch.Tensor:
    """Frames on white, uint8, T x height x width x 3; drawn at twice the size, then averaged."""
    frames = torch.ones(len(poses), 3, 2 * height, 2 * width)
    for layer in zip(*poses, strict=True):
        matrices = torch.tensor([transform(pose, height, width) for pose in layer])
        grid = F.affine_grid(matrices, [len(layer), 4, 2 * height, 2 * width], align_corners=False)
        drawn = F.grid_sample(sprite.expand(len(layer), -1, -1, -1), grid, align_corners=False)
        frames = frames * (1 - drawn[:, 3:]) + drawn[:, :3]
    return (F.avg_pool2d(frames, 2) * 255).round().byte().permute(0, 2, 3, 1)


def clip(sprite: torch.Tensor, motion: str, rng: random.Random, height: int = 64, width: int = 64) -> torch.Tensor:
    """One clip of a motion; place, size, speed and direction vary a little."""
    middle = width / 2 + rng.uniform(-3, 3) * (1 + 3 * (width > 64)), height / 2 + rng.uniform(-3, 3)
    scene = Scene(middle, rng.uniform(35, 41), rng.uniform(0.9, 1.1), rng.choice([-1, 1]))
    path = MOTIONS[motion][1]
    return render(sprite, [path(scene, i / (FRAMES - 1)) for i in range(FRAMES)], height, width)


def is_held(emoji: int, motion: int) -> bool:
    """One combination in fifteen is kept from training; every emoji and every motion is trained with others."""
    return (emoji * 7 + motion * 4) % 15 == 0


def caption(name: str, motion: str, rng: random.Random | None = None) -> str:
    """The plain caption, or with `rng` one of the ways people might say it."""
    phrase = MOTIONS[motion][0][0] if rng is None else rng.choices(MOTIONS[motion][0], (6, 2, 2))[0]
    article = "two" if motion == "swap" else "" if rng is None or rng.random() < 0.7 else rng.choice(["a", "the"])
    return " ".join(f"{article} {name} {phrase}".split())


def draw(package: Path, folder: Path, combinations: list[tuple[int, int]], width: int = 64) -> None:
    """Write one set of clips, every one from a seed of its own place in the set."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures, motions = sprites(package), list(MOTIONS)
    shape = (len(combinations), FRAMES, 64, width, 3)
    frames = np.lib.format.open_memmap(folder / "frames.npy", "w+", np.uint8, shape)
    for i, (emoji, motion) in enumerate(combinations):
        frames[i] = clip(pictures[emoji], motions[motion], random.Random(f"{folder.name} {i}"), width=width)
    frames.flush()
    (folder / "captions.json").write_text(json.dumps([(names()[e], motions[m]) for e, m in combinations]))
    print(f"{folder.name}: {len(combinations)} clips of {shape[1:]}")


def load(run: Path, name: str) -> tuple[np.ndarray, list[tuple[str, str]]]:
    """A set of clips, mapped rather than read, and what each one shows."""
    folder = run / "clips" / name
    captions = [(emoji, motion) for emoji, motion in json.loads((folder / "captions.json").read_text())]
    return np.load(folder / "frames.npy", mmap_mode="r"), captions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--variants", type=int, default=3, help="clips per combination of emoji and motion")
    args = parser.parse_args()
    torch.set_num_threads(1)
    package = fetch(args.run)
    everything = [(e, m) for e in range(len(names())) for m in range(len(MOTIONS))]
    held = [pair for pair in everything if is_held(*pair)]
    train = [pair for pair in everything if not is_held(*pair)]
    draw(package, args.run / "clips" / "held", held)
    draw(package, args.run / "clips" / "train", train * args.variants)
    draw(package, args.run / "clips" / "wide", random.Random(0).sample(train, len(train) // 3), width=96)


if __name__ == "__main__":
    main()
