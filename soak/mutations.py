"""Hostile contents made of good ones: JSON trees changed in a few places, the same as text, and spoilt bytes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

__all__ = ["TEXTS", "mutated", "spoilt", "written"]

HUGE, LONG = 10**400, 3_000
NUMBERS = [0, -1, 1, 2, 0.0, -0.0, 1e-320, 1e308, -1e308, float("inf"), float("nan"), 2**31, 2**53 + 1, 2**63, 2**64]
NUMBERS += [10**15, HUGE, -HUGE, True, False, 0.1 + 0.2]
TEXTS = ["", " ", "1", "0", "nan", "inf", "1e999", "10" * 40, "\0", "\ud800", "\u202e", "é" * 40, "../../etc/passwd"]
TEXTS += ["policy", "ladder", "comparison", "__class__", "{{ 7 * 7 }}", "<script>", "%s%n", "x" * LONG, "\n", "\u2028"]
TEXTS += ["os.system", "$(touch x)", "[bold]", "full", "output", "residual"]


def mutated(tree: Any, chance: random.Random) -> Any:
    """A copy of a tree with one to four things changed somewhere."""
    tree = _copied(tree)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 4))):
        places = _places(tree) if isinstance(tree, dict | list) else []
        if not places or chance.random() < 0.02:
            return chance.choice((*NUMBERS, *TEXTS, None, [], {}, [tree], {"kind": tree}))
        holder, key = chance.choice(places)
        chance.choice(CHANGES)(holder, key, chance)
    return tree


def written(tree: Any, chance: random.Random) -> bytes:
    """A tree as JSON; now and then with a field twice, nested deep, cut off, or in another encoding."""
    kind = chance.random()
    try:
        text = json.dumps(tree, ensure_ascii=chance.random() < 0.7)
    except (ValueError, RecursionError):  # a number of too many digits
        text = '{"version": ' + "9" * 5_000 + "}"
    if kind < 0.80:
        pass
    elif kind < 0.84 and text.startswith("{") and len(text) > 2:
        text = text[:-1] + ", " + text[1:]
    elif kind < 0.87:
        depth = chance.choice((50, 900, 100_000))
        text = text.replace(":", ": " + "[" * depth + "]" * depth + ", ", 1) if chance.random() < 0.3 else "[" * depth
    elif kind < 0.92:
        text = text[: chance.randrange(len(text) + 1)]
    elif kind < 0.96:
        text = text.replace(chance.choice('0123456789":,[{'), chance.choice('0123456789":,[{}]eE+-.'), 1)
    else:
        return chance.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"", b"\0")) + text.encode("utf-8", "surrogatepass")
    return text.encode("utf-8", "surrogatepass")


def spoilt(data: bytes, chance: random.Random) -> bytes:
    """Bytes with a few changed, cut off, doubled or moved."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5))):
        here = chance.randrange(len(made) + 1)
        how = chance.randrange(6)
        if how == 0:
            del made[here:]
        elif how == 1:
            made[here : here + 1] = bytes([chance.randrange(256)])
        elif how == 2:
            made[here:here] = chance.randbytes(chance.choice((1, 8, 100)))
        elif how == 3:
            made[here : here + 8] = chance.choice((0, 1, 2**32, 2**62, 2**64 - 1)).to_bytes(8, "little")
        elif how == 4:
            made[here:here] = made[: chance.choice((4, 40, 400))]
        else:
            del made[here : here + chance.choice((1, 8, 100))]
    return bytes(made)


def _copied(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _copied(value) for key, value in tree.items()}
    return [_copied(value) for value in tree] if isinstance(tree, list) else tree


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Every place in a tree that holds something: what it lies in, and where."""
    found, inside, seen = list[tuple[Any, Any]](), [tree], {id(tree)}
    while inside:  # not by recursion: trees are hundreds deep
        holder = inside.pop()
        is_dict = isinstance(holder, dict)
        found += [(holder, key) for key in (holder if is_dict else range(len(holder)))]
        for value in holder.values() if is_dict else holder:
            # A list made longer holds the same things many times, and one made longer twice thousands of times.
            if isinstance(value, (dict, list)) and id(value) not in seen:
                seen.add(id(value))
                inside.append(value)
    return found


def _another(holder: Any, key: Any, chance: random.Random) -> None:
    holder[key] = chance.choice((*NUMBERS, *TEXTS, None, [], {}))


def _gone(holder: Any, key: Any, chance: random.Random) -> None:
    del holder[key]


def _renamed(holder: Any, key: Any, chance: random.Random) -> None:
    if isinstance(holder, dict):
        holder[chance.choice((key + "x", key.upper(), *TEXTS))] = holder.pop(key)


def _longer(holder: Any, key: Any, chance: random.Random) -> None:
    value = holder[key]
    if isinstance(value, list | str):
        holder[key] = value * chance.choice((0, 2, 3, 500)) if len(value) < 100 else value + value
    elif isinstance(value, dict):
        value |= {f"more{n}": n for n in range(chance.choice((1, 1000)))}


def _wrapped(holder: Any, key: Any, chance: random.Random) -> None:
    value = holder[key]
    for _ in range(chance.choice((1, 2, 10, 300))):
        value = [value] if chance.random() < 0.5 else {"a": value}
    holder[key] = value


def _shifted(holder: Any, key: Any, chance: random.Random) -> None:
    """A number or text that is nearly right."""
    value = holder[key]
    if isinstance(value, bool) or value is None:
        holder[key] = str(value)
    elif isinstance(value, int | float):
        near = [value + 1, value - 1, -value, value * 10**6, [value]]
        holder[key] = chance.choice([*near, float(value), str(value)] if abs(value) < HUGE else near)
    elif isinstance(value, str) and value:
        here = chance.randrange(len(value))
        holder[key] = value[:here] + chance.choice(("", "1", "0", "\ud800", "é", "2")) + value[here + 1 :]


def _swapped(holder: Any, key: Any, chance: random.Random) -> None:
    other = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    holder[key], holder[other] = holder[other], holder[key]


Change = Callable[[Any, Any, random.Random], None]
CHANGES: list[Change] = [_another, _another, _gone, _renamed, _longer, _wrapped, _shifted, _shifted, _swapped]
