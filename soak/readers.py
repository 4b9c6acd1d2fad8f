"""Everything of ours that reads what others wrote: good examples to spoil, and how each is read."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soak.downloads import download_read, spoilt_download
from soak.mutations import mutated, spoilt, written

__all__ = ["FILES", "TREES", "Reader"]

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"


@dataclass(frozen=True)
class Reader:
    """How one kind of content is read, and used as its reader's caller would use it.

    Args:
        good: makes examples that can be read: trees, or in a folder files.
        read: reads a tree, or a file or folder.
        spoil: writes a hostile one into a folder, out of an example.
        modules: where the reading is done.
    """

    good: Callable[[Path], list[Any]]
    read: Callable[[Any], object]
    modules: tuple[str, ...]
    spoil: Callable[[Any, Path, random.Random], Path] | None = None


def _golden(*names: str) -> Callable[[Path], list[Any]]:
    return lambda _: [json.loads((GOLDEN / name).read_text()) for name in names]


def _parsed(tree: Any) -> None:
    from budcache.chosen import parse

    found = parse(tree)
    again = parse(found.model_dump(mode="json", exclude_none=True))
    if again != found:
        raise AssertionError("what was read is not what is written")
    str(found), repr(found), hash(found)


def _a_file(name: str) -> Callable[[Any, Path, random.Random], Path]:
    """A tree, hostile, as a JSON file."""

    def spoil(tree: Any, home: Path, chance: random.Random) -> Path:
        path = home / name
        path.write_bytes(written(mutated(tree, chance), chance))
        return path

    return spoil


def _loaded(path: Path) -> None:
    """Read as the command line shows it."""
    from rich.console import Console

    from budcache.chosen import load
    from budcache.report.text import describe

    found = load(path)
    with Path("/dev/null").open("w") as nowhere:
        Console(file=nowhere, width=100).print(describe(found))
    found.save(path.with_name("again.json"))


# Comparisons


def _comparisons(_: Path) -> list[Any]:
    from soak.examples import comparison

    return [comparison().model_dump(mode="json", exclude_none=True)]


def _compared(tree: Any) -> None:
    from budcache.comparison.numbers import rows
    from budcache.comparison.result import Comparison

    rows(Comparison.model_validate(tree))


def _comparison_loaded(path: Path) -> None:
    from budcache.comparison.result import Comparison

    Comparison.load(path)


def _folders(home: Path) -> list[Any]:
    from soak.examples import comparison_folder

    return [comparison_folder(home / "good")]


def _spoilt_folder(good: Path, home: Path, chance: random.Random) -> Path:
    """One file of the folder made hostile: a line of a journal, or a sample's bytes."""
    place = home / "folder"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(good, place)
    victim = chance.choice(sorted(path for path in place.rglob("*") if path.suffix in (".jsonl", ".npy", ".png")))
    _spoil_in_place(victim, chance)
    return place


def _spoil_in_place(victim: Path, chance: random.Random) -> None:
    if victim.suffix == ".jsonl" and chance.random() < 0.85:
        lines = victim.read_bytes().splitlines()
        here = chance.randrange(len(lines))
        lines[here] = written(mutated(json.loads(lines[here]), chance), chance)
        victim.write_bytes(b"\n".join(lines) + b"\n")
    else:
        victim.write_bytes(spoilt(victim.read_bytes(), chance))


def _folder_read(path: Path) -> None:
    """As `compare --show-only` reads it, then as more would be measured in it."""
    from budcache.comparison.folder import Folder
    from budcache.comparison.numbers import rows
    from budcache.comparison.showing import gathered
    from budcache.report.frames import frames, length

    found = gathered(path)
    rows(found)
    with Folder.reopened(path) as folder:
        for drawn in list(folder.drawn.values())[:2]:
            folder.missing(drawn), folder.values(drawn), folder.failures(drawn)
            folder.sample(*drawn.key, 0)
    for picture in sorted(path.rglob("*.png")):
        length(picture), frames(picture, 64, 3)


# Ledgers and records


def _ledgers(home: Path) -> list[Any]:
    from soak.examples import ledger

    return [ledger(home / "good.ledger.jsonl")]


def _spoilt_ledger(good: Path, home: Path, chance: random.Random) -> Path:
    path = home / "a.ledger.jsonl"
    shutil.copyfile(good, path)
    _spoil_in_place(path, chance)
    return path


def _ledger_read(path: Path) -> None:
    """As history, and as a search goes on with it, which must come to an end with what it knows."""
    from budcache.errors import BudcacheError
    from budcache.strategies import Ledger, read_history
    from soak.examples import CALLS, WORK, climbed

    try:
        read_history(path)
    except BudcacheError as error:
        _one_sentence(error)
    ledger = Ledger(path, WORK)
    try:
        climbed(ledger).best(CALLS)
    finally:
        ledger.close()


def _one_sentence(error: Exception) -> None:
    from soak.common import require

    require("\n" not in str(error), f"more than one line: {error}")


def _records(home: Path) -> list[Any]:
    from soak.examples import record

    return [record(home / "good.record")]


def _spoilt_record(good: Path, home: Path, chance: random.Random) -> Path:
    """The header's JSON changed, or ours inside of it, or bytes."""
    data = good.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header, rest, how = json.loads(data[8 : 8 + size]), data[8 + size :], chance.random()
    if how < 0.4:
        header["__metadata__"]["budcache"] = written(
            mutated(json.loads(header["__metadata__"]["budcache"]), chance), chance
        ).decode("utf-8", "replace")
    elif how < 0.7:
        header = mutated(header, chance)
    elif how < 0.85:
        rest = spoilt(rest, chance)
    text = written(header, chance) if how < 0.7 else data[8 : 8 + size]
    made = len(text).to_bytes(8, "little") + text + rest
    path = home / "a.record"
    path.write_bytes(made if how < 0.85 else spoilt(data, chance))
    return path


def _record_read(path: Path) -> None:
    from budcache import Record

    found = Record.load(path)
    str(found), [str(runs) for runs in found]
    if any(runs.samples >= 2 for runs in found) and found.source().steps <= 12:
        found.ladder([2])


# Saved schedulers, settings, timings


def _schedulers(_: Path) -> list[Any]:
    from soak.examples import saved_scheduler

    return [saved_scheduler()]


def _scheduler_read(path: Path) -> None:
    from budcache import BudcacheScheduler

    BudcacheScheduler.from_pretrained(path.parent)


def _chosen(_: Path) -> list[Any]:
    return [_short(json.loads(path.read_text())) for path in sorted(_source("cli").glob("*.settings.json"))]


def _short(tree: Any) -> Any:
    """Three of each list are enough to spoil."""
    if isinstance(tree, dict):
        return {key: _short(value) for key, value in tree.items()}
    return [_short(value) for value in tree[:3]] if isinstance(tree, list) else tree


def _source(room: str) -> Path:
    import budcache

    return Path(budcache.__file__).parent / room


def _chosen_read(path: Path) -> None:
    from budcache.comparison.settings import Settings

    Settings.load(path)


def _timings(_: Path) -> list[Any]:
    on = {"device": "cpu", "dtype": "float32", "pipeline": "P", "denoiser": "D", "parameters": 9, "call": {"a": [1, 2]}}
    one = {"on": on, "before": 0.1, "call": 0.2, "after": 0.3, "runs": 3}
    return [{"kind": "timings", "version": 1, "timings": [one]}]


def _timings_read(path: Path) -> None:
    from budcache.pipeline.seconds import kept_timings

    kept_timings(path)


# The hub


def _cards(_: Path) -> list[Any]:
    says = {"steps": 28, "budgets": [4, 8], "psnr": [30.1, 38.0], "height": 64, "guidance": [1.5, 7], "pipeline": "P"}
    return [{"id": "me/ladder", "cardData": {"budcache": says, "base_model": "a/b"}, "tags": ["budcache"]}]


def _card_read(tree: Any) -> None:
    from budcache.hub.finding import read_entry

    found = read_entry(tree, "abc")
    if found is not None:
        str(found), repr(found), found.says.data()


# What others made


def _masks(_: Path) -> list[Any]:
    return [[1, 0, 0, 1, 0], "1 0 0 1", [1] * 28]


def _imported(tree: Any) -> None:
    from budcache import PolicyError, import_policy

    if tree is None or (isinstance(tree, str) and tree.endswith((".pt", ".yaml"))):
        raise PolicyError("not a mask.")
    import_policy(tree)


def _checkpoints(_: Path) -> list[Any]:
    return [{"cache_step": [1, 2, 4], "student_steps": 6, "schedule_mask": [1, 0, 0, 1, 0, 1], "learned_sigmas": None}]


def _spoilt_checkpoint(tree: Any, home: Path, chance: random.Random) -> Path:
    import torch

    path = home / f"{chance.choice(('a', '28nfe10', '6nfe3'))}.pt"
    made = mutated({**tree, "learned_sigmas": chance.choice((None, [1.0, 0.8, 0.6, 0.4, 0.2, 0.1]))}, chance)
    if isinstance(made, dict) and chance.random() < 0.5:
        made = {name: _tensor(value) for name, value in made.items()}
    try:
        torch.save(made, path, _use_new_zipfile_serialization=chance.random() < 0.7)
    except RecursionError:  # too deep to be written down
        torch.save(tree, path)
    if chance.random() < 0.4:
        path.write_bytes(spoilt(path.read_bytes(), chance))
    return path


def _tensor(value: Any) -> Any:
    import torch

    try:
        return torch.tensor(value) if isinstance(value, list | int | float) else value
    except (ValueError, TypeError, RuntimeError, OverflowError):
        return value


def _import_read(path: Path) -> None:
    from budcache import import_policy

    import_policy(path)


YAML = [
    "&a [*a, *a]",
    "!!python/object/apply:os.system ['touch x']",
    "!!timestamp 2001-13-99",
    "1:99:99",
    "0o7",
    "<<: *b",
]


def _spoilt_yaml(tree: Any, home: Path, chance: random.Random) -> Path:
    import yaml

    try:
        text = yaml.safe_dump(mutated(tree, chance))
    except (RecursionError, ValueError):
        text = "a: b"
    if chance.random() < 0.3:
        text = text.replace("1", chance.choice(YAML), 1)
    if chance.random() < 0.05:
        levels = range(1, 9)
        text = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in levels)
        text += f"steps_computation_mask: [{', '.join(['*a8'] * 9)}]\n"
    path = home / "a.yaml"
    path.write_bytes(
        text.encode("utf-8", "surrogatepass")
        if chance.random() < 0.8
        else spoilt(text.encode("utf-8", "replace"), chance)
    )
    return path


def _settings_of_others(_: Path) -> list[Any]:
    return [{"cache_config": {"steps_computation_mask": [1, 0, 1, 0, 0], "max_warmup_steps": 4}}]


def _prompts_read(path: Path) -> None:
    from budcache.samples.prompts import read_prompts

    read_prompts(path)


def _spoilt_prompts(tree: Any, home: Path, chance: random.Random) -> Path:
    path = home / chance.choice(("a.jsonl", "a.csv", "a.txt"))
    lines = {".jsonl": [json.dumps(each) for each in tree], ".csv": ["caption", *(each["prompt"] for each in tree)]}
    text = "\n".join(lines.get(path.suffix, [each["prompt"] for each in tree])).encode()
    path.write_bytes(written(mutated(tree, chance), chance) if chance.random() < 0.4 else spoilt(text, chance))
    return path


POLICY = ("budcache.policy", "budcache.rows", "budcache.mask", "budcache.provenance", "budcache.storage.schema")
FOREIGN = ("budcache.exports.foreign",)
COMPARISON = tuple(f"budcache.comparison.{name}" for name in ("entry", "result", "kept", "folder", "showing"))

TREES = {
    "policies of version 1": Reader(_golden("policy-v1.json"), _parsed, POLICY),
    "policies of version 2": Reader(_golden("policy-v2.json", "rows-v2.json"), _parsed, POLICY),
    "ladders of version 1": Reader(_golden("ladder-v1.json"), _parsed, POLICY),
    "ladders of version 2": Reader(_golden("ladder-v2.json"), _parsed, POLICY),
    "comparisons": Reader(_comparisons, _compared, COMPARISON[:2]),
    "cards on the hub": Reader(_cards, _card_read, ("budcache.hub.finding", "budcache.hub.published")),
    "masks of others": Reader(_masks, _imported, FOREIGN),
}
every = _golden("policy-v1.json", "policy-v2.json", "ladder-v1.json", "ladder-v2.json", "rows-v2.json")
FILES = {
    "policy and ladder files": Reader(every, _loaded, ("budcache.storage.files", *POLICY), _a_file("a.json")),
    "downloads from the hub": Reader(every, download_read, ("budcache.hub.reading",), spoilt_download),
    "records": Reader(_records, _record_read, ("budcache.records.record",), _spoilt_record),
    "ledgers": Reader(
        _ledgers, _ledger_read, ("budcache.strategies.ledger", "budcache.storage.journal"), _spoilt_ledger
    ),
    "comparison files": Reader(_comparisons, _comparison_loaded, COMPARISON[:2], _a_file("comparison.json")),
    "comparison folders": Reader(_folders, _folder_read, (*COMPARISON, "budcache.report.frames"), _spoilt_folder),
    "saved schedulers": Reader(
        _schedulers, _scheduler_read, ("budcache.pipeline.saving",), _a_file("scheduler_config.json")
    ),
    "settings files": Reader(_chosen, _chosen_read, ("budcache.comparison.settings",), _a_file("a.settings.json")),
    "timings files": Reader(_timings, _timings_read, ("budcache.pipeline.seconds",), _a_file("a.timings.json")),
    "checkpoints of others": Reader(_checkpoints, _import_read, FOREIGN, _spoilt_checkpoint),
    "settings of others": Reader(_settings_of_others, _import_read, FOREIGN, _spoilt_yaml),
    "prompt files": Reader(
        lambda _: [[{"prompt": "a cat"}, {"prompt": "two, dogs"}]],
        _prompts_read,
        ("budcache.samples.prompts",),
        _spoilt_prompts,
    ),
}
