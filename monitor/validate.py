"""Models of what people write, and their errors in plain words with file, line and field."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from monitor.document import Document, Route
from monitor.errors import InputError, plain

_SHOWN: Final = 80
_KINDS: Final = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
    "none_required": "null",
}

_UNION: Final = frozenset({"str", "bool", "int", "float"})
"""Names that pydantic gives the members of a union of scalars in an error's place."""


class Written(BaseModel):
    """Base of what people write: unknown fields are errors, null is the same as absent."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=False, hide_input_in_errors=True, validate_default=False
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if isinstance(data, dict) and None in data.values():
            return {
                key: value
                for key, value in data.items()
                if value is not None or key not in cls.model_fields
            }
        return data


Model = TypeVar("Model", bound=BaseModel)


def build(
    model: type[Model], value: Any, document: Document, route: tuple[str | int, ...] = ()
) -> Model:
    """`value`, which stands at `route` of the document, as a `model`. Raises InputError."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise first_error(error, model, value, document, route) from None


def first_error(
    error: ValidationError,
    model: type[BaseModel],
    value: Any,
    document: Document,
    route: tuple[str | int, ...] = (),
) -> InputError:
    """The error that stands first in the file."""
    details = error.errors(include_url=False)
    ranked = []
    for position, detail in enumerate(details):
        where = _route(detail, value)
        line = document.line((*route, *where))
        missing = detail["type"] == "missing"  # a misspelt field says more than its absence
        ranked.append((missing, line if line is not None else 0, position, where, detail))
    *_, where, detail = min(ranked, key=lambda entry: entry[:3])
    problem, allowed = _words(detail, model, _at(value, where), where)
    if len(ranked) > 1:
        problem += f" (and {len(ranked) - 1} more)"
    return document.error((*route, *where), problem, allowed)


def _route(detail: ErrorDetails, value: Any) -> tuple[str | int, ...]:
    """The error's place without the names that pydantic adds for union members and functions."""
    kept: list[str | int] = []
    last = len(detail["loc"]) - 1
    for position, part in enumerate(detail["loc"]):
        if isinstance(value, dict) and (
            part in value or (position == last and detail["type"] == "missing")
        ):
            kept.append(part)
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            kept.append(part)
            value = value[part]
        elif isinstance(value, Mapping | list):
            break
    return tuple(kept)


def _at(value: Any, route: Route) -> Any:
    for part in route:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _words(
    detail: ErrorDetails, model: type[BaseModel], value: Any, where: Route
) -> tuple[str, str | None]:
    """Problem and what is allowed, for one of pydantic's errors."""
    kind = detail["type"]
    if kind == "extra_forbidden":
        return "unknown field" + _hint(str(where[-1]), _fields(model, where)), None
    if kind == "missing":
        return "is required", None
    if kind in _KINDS:
        allowed = _KINDS[kind]
        if any(str(part) in _UNION for part in detail["loc"]):
            allowed = "text, a number, true, false or null"
        return f"{shown(value)} is {kind_of(value)}", allowed
    if kind == "literal_error":
        expected = str(detail.get("ctx", {}).get("expected", ""))
        known = expected.replace("'", "").replace(" or ", ", ").split(", ")
        return shown(value) + _hint(str(value), known), expected
    if kind in {"value_error", "assertion_error"}:
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, RefusalError):
            return cause.problem, cause.allowed
        return str(cause or detail["msg"]), None
    message = detail["msg"]
    return f"{shown(value)}: {message[:1].lower()}{message[1:]}", None


class RefusalError(ValueError):
    """Raised by a validator: the problem, and what would be allowed."""

    def __init__(self, problem: str, allowed: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.allowed = allowed


def did_you_mean(given: str, known: list[str]) -> str:
    """`, did you mean 'x'?`, or nothing when no known word is near."""
    return _hint(given, known)


def _hint(given: str, known: list[str]) -> str:
    near = get_close_matches(given[:100], known, 1, 0.6)
    return f", did you mean {near[0]!r}?" if near else ""


def _fields(model: type[BaseModel], where: Route) -> list[str]:
    """Names of the fields that are known where an unknown one stands."""
    known = model
    for part in where[:-1]:
        field = known.model_fields.get(part) if isinstance(part, str) else None
        if field is None:
            continue
        for candidate in _models(field.annotation):
            known = candidate
    return list(known.model_fields)


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Models inside a field's type: `dict[str, ParameterRule]` holds one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    found: list[type[BaseModel]] = []
    for inner in getattr(annotation, "__args__", ()):
        found += _models(inner)
    return found


def shown(value: Any) -> str:
    """A foreign value, short and on one line."""
    if isinstance(value, str):
        return plain(repr(value), _SHOWN)
    try:
        return plain(orjson.dumps(value).decode(), _SHOWN)
    except orjson.JSONEncodeError:
        return kind_of(value)


def kind_of(value: Any) -> str:
    """What a value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list | tuple) else "a mapping"
