"""Claim and evidence, compared by code. What a model points at is looked up and must say the same.

| kind | supported when |
| --- | --- |
| identifier | the value stands there, letter for letter |
| quantity | a number there has the value, rounded to the decimals that the answer shows |
| date | a date there is the same day, a time the same minute, whatever the format |
| quotation | the words stand there, quotes, hyphens, spaces and case aside |
| action | the step is a call that ran, did not fail, does not merely read, and names the same entity |
| absence | what stands there is empty |
| status, other | what stands there holds the value's words; `unchecked` when it only is about it |

Two rules hold for every kind, because a model can be talked into any kind: the value must be what
the answer's own words say, and every number and identifier in these words must occur in some result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from monitor.reading import Claim, Outcome, Shown

_LEAVES: Final = 20_000
_DEPTH: Final = 128
_EXCERPT: Final = 200

# Linear: a number is at most 40 digits, and starts where no word or fraction goes on.
_NUMBER: Final = re.compile(
    r"(?<![\w.])(?<![A-Za-z][-_])[-−]?(?:\d{1,3}(?:,\d{3})+|\d{1,40})(?:\.\d{1,20})?(?!\d)",
    re.ASCII,
)
_SPELT: Final = {
    word: Decimal(number)
    for number, word in enumerate(
        ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    )
}
_SPELT_WORD: Final = re.compile(rf"\b(?:{'|'.join(_SPELT)})\b")
_ENTITY: Final = re.compile(r"#\w{2,64}|\b[A-Za-z][A-Za-z_-]{0,32}\d[\w-]{0,64}", re.ASCII)
_WORD: Final = re.compile(r"[^\W\d_]{4,}")
_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1
    )
}
_MONTH: Final = (
    r"(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_ISO: Final = re.compile(r"\b(\d{4})[-/](\d{1,2})[-/](\d{1,2})(?!\d)", re.ASCII)
_SLASHED: Final = re.compile(r"\b(\d{1,2})[/.](\d{1,2})[/.](\d{4})\b", re.ASCII)
_MONTH_DAY: Final = re.compile(rf"\b{_MONTH} (\d{{1,2}})(?:st|nd|rd|th)?\b(?:,? (\d{{4}})\b)?")
_DAY_MONTH: Final = re.compile(
    rf"\b(\d{{1,2}})(?:st|nd|rd|th)? (?:of )?{_MONTH}\b(?:,? (\d{{4}})\b)?"
)
_TIME: Final = re.compile(
    r"(?<![\d:])(\d{1,2}):(\d{2})(?::\d{2})?(?:\.\d+)?(?: ?([ap])\.?m\b)?", re.ASCII
)
_PATH: Final = re.compile(r"\.?([^.\[\]'\"]+)|\[(-?\d{1,9})\]|\[(?:'([^']*)'|\"([^\"]*)\")\]")
_SAME: Final = str.maketrans(
    {
        "“": '"',
        "”": '"',
        "„": '"',
        "‘": "'",
        "’": "'",
        "‐": "-",
        "‑": "-",
        "–": "-",
        "—": "-",
        "−": "-",
        "_": " ",
        "\u00a0": " ",
    }
)
_READING_TOOL: Final = re.compile(
    r"(?:^|[._/-])(get|list|search|find|read|look ?up|fetch|query|show|view|check|calculate|think)"
)
_MECHANICAL: Final = ("identifier", "quantity", "date", "quotation")
"""Kinds whose value code can compare."""
_EMPTY_WORDS: Final = re.compile(r"\b(no|none|not found|nothing|empty|zero|0)\b")

Day = tuple[int | None, int, int]


def resolve(claim: Claim, evidence: Sequence[Shown], *, whole: bool) -> Outcome | None:
    """What is wrong with a claim; None when it is supported. `whole`: all evidence was shown to
    the model. `evidence` holds the results as recorded, uncut."""

    def because(decided: Any, message: str) -> Outcome:
        return Outcome(decided, claim.kind, claim.words[:_EXCERPT], claim.confidence, message)

    if claim.evidence is None:
        if not whole:
            return because("undecided", "no evidence is named, and not all was shown")
        return because("unsupported", "the reading points at no evidence for a claim")
    if _foreign_items(claim.words, evidence):
        return because("mismatch", "a number or identifier in it stands in no result")
    shown = next((s for s in evidence if s.step == claim.evidence.step), None)
    found = None if shown is None else trail(shown, claim.evidence.path)
    if shown is None or found is None:
        return because("unsupported", "what the reading points at is not there")
    if claim.kind == "action":
        problem = _action(claim, shown)
        return None if problem is None else because("mismatch", problem)
    if claim.kind in _MECHANICAL and not says(claim, claim.words):
        return because("mismatch", "the reading's value is not what the answer's words say")
    leaf = found[-1]
    if claim.kind == "absence":
        return None if _is_empty(leaf) else because("unchecked", "what it points at is not empty")
    if any(says(claim, text) for text in leaves(leaf)):
        return None
    if claim.kind in _MECHANICAL:
        return because("mismatch", "what it points at says otherwise")
    there = words_of(" ".join(leaves(leaf)))
    said = words_of(claim.value)
    if said and said <= there:
        return None
    near = there | words_of(claim.evidence.path)
    if isinstance(leaf, bool) or (said | words_of(f"{claim.subject} {claim.kind}")) & near:
        return because("unchecked", "what it points at says it in other words, if it does")
    return because("mismatch", "what it points at speaks of something else")


def stands_in(words: str, answer: str) -> bool:
    """Whether these words are the answer's own."""
    plain = normal(words)
    return bool(plain) and plain in normal(answer)


def normal(text: str) -> str:
    """Text without what typography varies: quotes, hyphens, underscores, spaces, case."""
    return " ".join(text.translate(_SAME).casefold().split())


# -- where it points -------------------------------------------------------------------------


def decoded(text: str) -> Any:
    """What JSON text says; other text as it is."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def trail(shown: Shown, path: str) -> list[Any] | None:
    """The values on the way to a JSON path of a step, from the whole to the one that stands there;
    None when nothing does. The dialects that models write are read: `$.a[0]['b']`, `a.b`,
    `/a/0/b`."""
    text = shown.error if shown.result is None else shown.result
    if text is None:
        return None
    here = decoded(text)
    path = path.strip()
    if path.startswith("/"):
        keys: list[str | int] = [part for part in path.split("/") if part]
    else:
        path = path.removeprefix("$")
        keys = []
        end = 0
        for match in _PATH.finditer(path):
            if match.start() != end:
                return None
            end = match.end()
            name, index, one, two = match.groups()
            keys.append(int(index) if index is not None else (name or one or two or ""))
        if end != len(path):
            return None
    if len(keys) > _DEPTH:
        return None
    way = [here]
    for key in keys:
        if isinstance(here, dict):
            if str(key) not in here:
                return None
            here = here[str(key)]
        elif isinstance(here, list):
            try:
                here = here[int(key)]
            except (ValueError, IndexError):
                return None
        else:
            return None
        way.append(here)
    return way


def leaves(value: Any) -> Iterator[str]:
    """Scalars of a value as text, walked without recursion and not without end."""
    stack, left = [value], _LEAVES
    while stack and left:
        left -= 1
        here = stack.pop()
        if isinstance(here, dict):
            stack += here.values()
        elif isinstance(here, list):
            stack += here
        elif isinstance(here, str):
            yield here
        else:
            yield msgspec.json.encode(here).decode()


def _is_empty(leaf: Any) -> bool:
    if isinstance(leaf, str):
        return not leaf.strip() or (len(leaf) < 500 and bool(_EMPTY_WORDS.search(leaf.lower())))
    return not leaf or (isinstance(leaf, dict) and not any(leaf.values()))


# -- what it says ----------------------------------------------------------------------------


def says(claim: Claim, text: str) -> bool:
    """Whether a text says the claim's value, by the claim's kind."""
    value = claim.value.strip()
    if claim.kind == "identifier":
        return bool(value) and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None
    if claim.kind == "quantity":
        wanted = _numbers(value)
        return bool(wanted) and _all_in(wanted, _numbers(text))
    if claim.kind == "date":
        days, times = _days(value), _times(value)
        if days or times:
            there = [day for days_there in _days(text) for day in days_there]
            return times <= _times(text) and all(
                any(_same_day(one, other) for one in day for other in there) for day in days
            )
    if claim.kind == "quotation":
        value = value.translate(_SAME).strip("\"' ")
    return bool(value) and normal(value) in normal(text)


def words_of(text: str) -> set[str]:
    return {word[:6] for word in _WORD.findall(normal(text))}


def _numbers(text: str) -> list[Decimal]:
    found = [Decimal(match.replace(",", "").replace("−", "-")) for match in _NUMBER.findall(text)]
    return found + [_SPELT[word] for word in _SPELT_WORD.findall(text.lower())]


def _all_in(wanted: Iterable[Decimal], there: Sequence[Decimal]) -> bool:
    """Whether every number is there, by value; a rounded one rounded from what is there."""
    return all(any(_same_number(number, other) for other in there) for number in wanted)


def _same_number(said: Decimal, there: Decimal) -> bool:
    if said == there:
        return True
    said_exponent, there_exponent = said.as_tuple().exponent, there.as_tuple().exponent
    assert isinstance(said_exponent, int)
    assert isinstance(there_exponent, int)
    if there_exponent < said_exponent <= -1:
        return there.quantize(Decimal(1).scaleb(said_exponent)) == said
    return False


def _days(text: str) -> list[list[Day]]:
    """Dates of a text; each as the days that it can mean."""
    found: list[list[Day]] = []
    lowered = " ".join(text.lower().split())
    for year, month, day in _ISO.findall(lowered):
        found.append([(int(year), int(month), int(day))])
    for one, two, year in _SLASHED.findall(lowered):
        a, b = int(one), int(two)
        found.append([(int(year), m, d) for m, d in {(a, b), (b, a)} if m <= 12])
    for month, day, year in _MONTH_DAY.findall(lowered):
        found.append([(int(year) if year else None, _MONTHS[month[:3]], int(day))])
    for day, month, year in _DAY_MONTH.findall(lowered):
        found.append([(int(year) if year else None, _MONTHS[month[:3]], int(day))])
    return [days for days in found if days]


def _same_day(one: Day, other: Day) -> bool:
    return one[1:] == other[1:] and (one[0] is None or other[0] is None or one[0] == other[0])


def _times(text: str) -> set[int]:
    """Times of day, in minutes."""
    found = set()
    for hour, minute, half in _TIME.findall(text.lower()):
        hours = int(hour) % 12 + (12 if half == "p" else 0) if half else int(hour)
        found.add(60 * hours + int(minute))
    return found


# -- items that no kind excuses --------------------------------------------------------------


def _foreign_items(words: str, evidence: Sequence[Shown]) -> bool:
    """Whether words hold an identifier, or a number of two digits or more, that stands nowhere."""
    dated = bool(_days(words)) or bool(_times(words))
    texts = [t for s in evidence for t in (s.result, s.error, s.arguments) if t is not None]
    entities = [match.lstrip("#").lower() for match in _ENTITY.findall(words)]
    if entities and not dated:
        lowered = [text.lower() for text in texts]
        if any(not any(entity in text for text in lowered) for entity in entities):
            return True
    wanted = [] if dated else [n for n in _numbers(words) if abs(n) >= 10]
    if not wanted:
        return False
    there = [number for text in texts for number in _numbers(text)]
    return not _all_in(wanted, there)


def _action(claim: Claim, shown: Shown) -> str | None:
    """What keeps a call from backing a claimed action."""
    if shown.tool is None:
        return "it points at no call"
    if shown.error is not None:
        return "the call that it points at failed"
    if _READING_TOOL.search(shown.tool.lower()):
        return "the call that it points at only reads"
    about = f"{shown.arguments or ''} {shown.result or ''}".lower()
    named = _ENTITY.findall(f"{claim.words} {claim.subject}")
    if any(entity.lstrip("#").lower() not in about for entity in named):
        return "the call that it points at concerns something else"
    return None
