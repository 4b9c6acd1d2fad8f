"""Write the folders that the package ships: `python video_export.py RUN ../src/budcache/models`.

`tiny-wan` and `tiny-wan-large` hold a transformer, a scheduler and a model_index.json each. What both use (vae,
text_encoder, tokenizer, prompts) is written once, into `tiny-wan-shared`. `assembled` joins the two as a stock
WanPipeline; `--whole FOLDER` also writes complete folders, readable by `WanPipeline.from_pretrained`.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
from export import halve, tidy
from transformers import PreTrainedTokenizerFast, UMT5EncoderModel
from video_data import MOTIONS, caption, is_held, names
from video_transformer import averaged

NAMES = {"small": "tiny-wan", "large": "tiny-wan-large"}
SHARED = "tiny-wan-shared"


def scheduler(shift: float = 3.0) -> UniPCMultistepScheduler:
    """Wan2.1's settings; 3 is what it uses for small pictures."""
    return UniPCMultistepScheduler(
        num_train_timesteps=1000,
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=shift,
        solver_order=2,
    )


def index(folder: Path) -> dict:
    """What model_index.json says in a folder that `save_pretrained` would write."""
    return {
        "_class_name": "WanPipeline",
        "_diffusers_version": json.loads((folder / "transformer" / "config.json").read_text())["_diffusers_version"],
        "boundary_ratio": None,
        "expand_timesteps": False,
        "scheduler": ["diffusers", "UniPCMultistepScheduler"],
        "text_encoder": ["transformers", "UMT5EncoderModel"],
        "tokenizer": ["transformers", "PreTrainedTokenizerFast"],
        "transformer": ["diffusers", "WanTransformer3DModel"],
        "transformer_2": [None, None],
        "vae": ["diffusers", "AutoencoderKLWan"],
    }


def shared_parts(models: Path) -> dict:
    """The components that both sizes share, by the names that `from_pretrained` takes them by."""
    folder = models / SHARED
    return {
        "vae": AutoencoderKLWan.from_pretrained(folder / "vae"),
        "text_encoder": UMT5EncoderModel.from_pretrained(folder / "text_encoder"),
        "tokenizer": PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer"),
    }


def assembled(models: Path, name: str) -> WanPipeline:
    """A stock pipeline from the two folders; the configurations say float32, so weights are widened."""
    return WanPipeline.from_pretrained(models / name, local_files_only=True, **shared_parts(models))


def prompts() -> dict[str, list[str]]:
    """Two sets of 32 captions, 64 different emoji, every motion about equally often, every fourth one untrained."""
    motions, emoji = list(MOTIONS), list(range(len(names())))
    random.Random(0).shuffle(emoji)
    said = []
    for i in range(64):
        motion = (i // 2) % len(motions)
        chosen = next(e for e in emoji if is_held(e, motion) == (i // 2 % 4 == 3))
        emoji.remove(chosen)
        said.append(caption(names()[chosen], motions[motion]))
    return {"calibration": said[::2], "evaluation": said[1::2]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("--whole", type=Path, help="also write complete pipeline folders here")
    args = parser.parse_args()
    flows = {size: averaged(args.run, size) for size in NAMES if (args.run / f"{size}.pt").exists()}
    shared = args.models / SHARED
    reader = flows["large"].reader
    AutoencoderKLWan.from_pretrained(args.run / "vae").save_pretrained(shared / "vae")
    reader.encoder.save_pretrained(shared / "text_encoder")
    reader.tokenizer.save_pretrained(shared / "tokenizer")
    (shared / "prompts").mkdir(exist_ok=True)
    for split, lines in prompts().items():
        (shared / "prompts" / f"{split}.txt").write_text("\n".join(lines) + "\n")
    written = [shared]
    for size, flow in flows.items():
        folder = args.models / NAMES[size]
        transformer: WanTransformer3DModel = flow.transformer
        transformer.save_pretrained(folder / "transformer")
        scheduler().save_pretrained(folder / "scheduler")
        (folder / "model_index.json").write_text(json.dumps(index(folder), indent=2) + "\n")
        written.append(folder)
    for folder in written:
        halve(folder)
        tidy(folder)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        print(f"{folder}: {size / 1e6:.2f} MB")
    if args.whole:
        for folder in written[1:]:
            assembled(args.models, folder.name).save_pretrained(args.whole / folder.name)
            tidy(args.whole / folder.name)


if __name__ == "__main__":
    main()
