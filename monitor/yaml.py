"""YAML as people mean it: the 1.2 core schema (`no`, `2024-05-01` and `12:30:45` are text), one
document a file, no tags, no aliases (a few lines of them expand to gigabytes).

Sources: https://yaml.org/spec/1.2.2/#103-core-schema; PyYAML gives the events, its types are YAML
1.1's and are not used.
"""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

from monitor.document import SIZE_LIMIT, Builder, Document, decode, place
from monitor.errors import InputError

_Parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a build without libyaml is slower
_BOOLEANS: Final = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_INTEGER: Final = re.compile(r"[-+]?[0-9]+\Z")
_BASED: Final = re.compile(r"0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_NOT_JSON: Final = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z")
_NUMERIC: Final = frozenset("-+.0123456789")


def parse(data: bytes, name: str, *, limit: int = SIZE_LIMIT) -> Document:
    """Parses UTF-8 text of at most `limit` bytes; `name` stands in errors. An empty file is the
    value None. Raises InputError.
    """
    text = decode(data, name, limit)
    builder = Builder(name)
    documents = 0
    try:
        for event in yaml.parse(text, Loader=_Parser):
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise builder.error(_line(event), "a second document", "one document a file")
            _take(builder, event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(part for part in (error.context, error.problem) if part)
        line = mark.line + 1 if mark else None
        raise InputError(place(name, line), f"is not YAML: {problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problem = str(error).splitlines()[0]
        raise InputError(place(name, line), f"is not YAML: {problem}") from None
    except yaml.YAMLError as error:
        raise InputError(name, f"is not YAML: {error}") from None
    return builder.document()


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0


def _take(builder: Builder, event: yaml.Event) -> None:
    line = _line(event)
    if isinstance(event, yaml.ScalarEvent | yaml.MappingStartEvent | yaml.SequenceStartEvent):
        if event.anchor is not None:
            raise builder.error(line, f"anchor &{event.anchor}: anchors are refused")
        if event.tag is not None:
            raise builder.error(line, f"tag {event.tag}: tags are refused")
    if isinstance(event, yaml.ScalarEvent):
        if builder.wants_key:
            builder.key(event.value, line)
        else:
            quoted = not event.implicit[0]
            builder.value(event.value if quoted else _plain(event.value, builder, line), line)
    elif isinstance(event, yaml.MappingStartEvent):
        builder.open({}, line)
    elif isinstance(event, yaml.SequenceStartEvent):
        builder.open([], line)
    elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
        builder.close()
    elif isinstance(event, yaml.AliasEvent):
        raise builder.error(line, f"alias *{event.anchor}: aliases are refused")


def _plain(text: str, builder: Builder, line: int) -> Any:
    """A scalar without quotes, by the core schema."""
    if text in _NULLS:
        return None
    boolean = _BOOLEANS.get(text)
    if boolean is not None:
        return boolean
    if text[0] in _NUMERIC:
        if _INTEGER.match(text):
            return builder.number(text, line, 10)
        if _BASED.match(text):
            return builder.number(text, line, 0)
        if _FLOAT.match(text):
            return builder.number(text, line)
        if _NOT_JSON.match(text):
            raise builder.error(line, f"{text} is no number that JSON can write")
    return text
