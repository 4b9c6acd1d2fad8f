"""What the fields of our files may hold, and how a refusal becomes one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from math import isfinite
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    Strict,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from typing_extensions import Self

from budcache.elsewhere import Elsewhere
from budcache.errors import PolicyError
from budcache.mask import MAX_STEPS, Mask
from budcache.wording import quote

__all__ = ["Count", "MaskField", "Number", "Numbers", "Seed", "Settings", "Text", "Value"]

MAX_DEPTH = 8  # of a scheduler's settings, which are flat in practice

# bool is an int and "1" is nearly one; neither is a noise level.
Number = Annotated[float, Strict(), AllowInfNan(False)]
Numbers = Annotated[tuple[Number, ...], Field(fail_fast=True)]
Count = Annotated[int, Strict(), Field(ge=0, le=10**15)]
Seed = Annotated[int, Strict(), Field(ge=-(2**63), lt=2**64)]  # what torch takes
Text = Annotated[str, Strict(), Field(max_length=4096)]
MOST_FIELDS = 1000


def _to_mask(value: object) -> object:
    if isinstance(value, Mask):
        return value
    if not isinstance(value, str):
        raise ValueError("a mask is written as text of '1' and '0', such as \"1011\"")
    return Mask.parse(value)


def _to_plain(value: Any, room: int = MAX_DEPTH) -> Any:
    """Refuse what JSON cannot give back as it was."""
    if not room:
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep; keep settings flat")
    if isinstance(value, dict) and all(isinstance(key, str) and _is_text(key) for key in value):
        return {key: _to_plain(inner, room - 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(inner, room - 1) for inner in value]
    if (
        isinstance(value, int | None)
        or (isinstance(value, str) and _is_text(value))
        or (isinstance(value, float) and isfinite(value))
    ):
        return value
    raise ValueError(f"{quote(value)} cannot be written as JSON; use text, finite numbers, lists and objects")


def _is_text(value: str) -> bool:
    """Whether it can be written to a file: half of a pair of surrogates cannot."""
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


Settings = Annotated[dict[Text, Any], AfterValidator(_to_plain)]
MaskField = Annotated[
    Mask,
    BeforeValidator(_to_mask),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "pattern": "^1[01]*$", "maxLength": MAX_STEPS}),
]

_within: ContextVar[bool] = ContextVar("_within", default=False)


@contextmanager
def _refused_in_one_sentence() -> Iterator[None]:
    """A refusal as a `PolicyError`, by the outermost value: it knows the whole path to the culprit."""
    if _within.get():
        yield
        return
    token = _within.set(True)
    try:
        yield
    except ValidationError as error:
        raise PolicyError(sentence(error)) from None
    finally:
        _within.reset(token)


class Value(BaseModel):
    """A frozen value whose every refusal is one `PolicyError` sentence."""

    # Built when the first one is read or made: to build them all takes a good part of an import.
    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, ignored_types=(Elsewhere,), defer_build=True
    )

    @model_validator(mode="before")
    @classmethod
    def _not_too_many_fields(cls, data: Any) -> Any:
        """Each unknown field would be an error of its own, and hundreds of thousands of them take seconds to make."""
        if isinstance(data, dict) and len(data) > MOST_FIELDS:
            raise ValueError(f"{len(data)} fields are more than any value has")
        return data

    # Where values are made, not in a validator: there pydantic wraps a `PolicyError`, which is a `ValueError`, again.
    def __init__(self, **data: Any) -> None:
        with _refused_in_one_sentence():
            super().__init__(**data)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """The value that already decoded JSON describes."""
        with _refused_in_one_sentence():
            return super().model_validate(obj, **options)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self._check()
        return self

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """The same value with some fields changed; what does not fit together is refused, as when it is made."""
        if not update:
            return super().model_copy(deep=deep)
        return type(self).model_validate({**{name: getattr(self, name) for name in type(self).model_fields}, **update})

    def _check(self) -> None:
        """Raise `ValueError` where fields that are right by themselves do not fit together."""


def sentence(error: ValidationError) -> str:
    """The first refusal of a validation as one sentence: where, what, and what was expected."""
    first = error.errors(include_url=False)[0]
    where = ""
    for part in first["loc"]:
        if isinstance(part, str) and not part.isprintable():
            part = quote(part)
        where += f"[{part}]" if isinstance(part, int) else (f".{part}" if where else part)
    where = where if len(where) <= 80 else where[:77] + "..."
    kind, value = first["type"], first.get("input")
    if kind == "extra_forbidden":
        return f"unknown field {where!r}. Remove it, or upgrade budcache if a newer version wrote the file."
    if kind == "missing":
        return f"field {where!r} is missing. Add it."
    message = str(first["msg"]).removeprefix("Value error, ")
    if kind == "value_error":
        # Mask and version name themselves; what matters is in which rung they stand.
        where = where.removesuffix("mask").removesuffix("version").rstrip(".")
        return (f"{where}: {message}" if where else message).rstrip(".") + "."
    return f"{where or 'the value'} is {quote(value)}: {message[0].lower()}{message[1:].rstrip('.')}."
