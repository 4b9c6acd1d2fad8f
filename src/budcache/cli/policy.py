"""`budcache policy`: a policy by hand, or from what others made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from budcache.cli.common import Json, check_writable, command, out, say
from budcache.errors import FileError, PolicyError
from budcache.exports.foreign import PREFIX, PRESETS, import_policy
from budcache.policy import Reuse
from budcache.wording import quote

_NAMES = ", ".join(f"{PREFIX}{name}" for name in PRESETS)


@command
def policy(
    source: Annotated[
        str | None,
        typer.Argument(
            help="A checkpoint of the authors' code (.pt), a mask such as 1,0,0,1, a YAML file of cache-dit, or one of "
            f"{_NAMES}.",
            show_default="steps by hand",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of the full run.")] = None,
    computed: Annotated[str | None, typer.Option(help="By hand: the steps to compute, such as 0,4,8,12.")] = None,
    reuse: Annotated[
        Reuse | None,
        typer.Option(help="What reused steps repeat.", show_default="residual from others, output by hand"),
    ] = None,
    out_path: Annotated[Path, typer.Option("--out", "-o", help="Where to write the policy.")] = Path("policy.json"),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there already.")] = False,
    as_json: Json = False,
) -> None:
    """Make a policy by hand, or from the authors' checkpoints and cache-dit's masks."""
    from budcache.report.text import describe

    check_writable(out_path)
    if out_path.exists() and not force:
        raise FileError(f"{out_path} is there already. Choose another --out, or replace it with --force.")
    chosen = None if computed is None else parse_steps(computed)
    found = import_policy(source, steps=steps, computed=chosen, reuse=reuse)
    found.save(out_path)
    if as_json:
        print(json.dumps({"policy": str(out_path), "mask": str(found.mask), "calls": found.budget}))
        return
    out.print(describe(found))
    say(f"\n{out_path}")
    say(f"  budcache generate MODEL --policy {out_path} --prompt ...")


def parse_steps(text: str) -> list[int]:
    """`0,4,8` as numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 5 for part in parts):
        raise PolicyError(f"--computed {quote(text)} cannot be read. Write the steps as 0,4,8,12.")
    return [int(part) for part in parts]
