import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.contract import Rules
from monitor.corpus import DEPTH_LIMIT, Corpus, flatten, flatten_json_text
from monitor.grounding import PHRASES, WRITE_HINTS, GroundingMonitor, quotes
from monitor.model import Call
from tests import oracle


def judge(answer, results=None, tools=(), rules=None):
    monitor = GroundingMonitor(Rules.model_validate(rules or {}))
    state = monitor.initial()
    for index, tool in enumerate(tools):
        call = tool if isinstance(tool, Call) else Call(f"k{index}", tool)
        state = monitor.step(state, call)
    corpus = Corpus()
    for key, value in (results or {}).items():
        corpus.add(key, flatten(value))
    return monitor.judge(state, answer, corpus)


def found(*args, **more):
    judgement = judge(*args, **more)
    assert judgement.now == ()
    return [(f.code.removeprefix("SAFETY_"), f.subject) for f in judgement.later]


ID, QUOTE, QUANTITY = "FABRICATED_ID", "FABRICATED_QUOTE", "FABRICATED_QUANTITY"


@pytest.mark.parametrize("answer", [None, "", " \n\t", "\u2003\u00a0"])
def test_a_blank_answer_is_empty_and_nothing_else(answer):
    assert found(answer, rules={"filtered_fields": ["x"]}) == [("EMPTY_ANSWER", "answer")]


@pytest.mark.parametrize(
    ("answer", "results", "expected"),
    [
        ("fine", {}, []),
        ("SKU-42 it is", {"get#0": {"sku": "SKU-42"}}, []),
        ("SKU-42 it is", {"get#0": {"sku": "sku-42"}}, []),
        ("SKU-42 it is", {"get#0": "xsku-421"}, []),  # a substring is enough for the paper
        ("SKU-42 it is", {"get#0": "SKU 42"}, [(ID, "sku-42")]),
        ("SKU-42", {}, [(ID, "sku-42"), (QUANTITY, "42")]),
        ("A-1, A-1 and B-2", {}, [(ID, "a-1"), (ID, "b-2")]),
        ("xA-1 A-1x _A-1 a-1", {}, []),  # no word boundary, or no capitals
        ("éA-1", {}, [(ID, "a-1")]),  # a word boundary is ASCII
        ("T-1-2", {}, [(ID, "t-1")]),
        ("get#0 said 5", {"get#0": 1}, []),
        ("7 of 12", {"a#0": {"n": 12}}, []),
        ("7 of 13", {"a#0": {"n": 12}}, [(QUANTITY, "13")]),
        ("12", {"a#0": {"n": 3125}}, []),
        ("costs 48.00", {"a#0": {"n": 48.0}}, [(QUANTITY, "00")]),
        ("1,234.50", {"a#0": 1234.5}, [(QUANTITY, "50")]),
        ("١٢ and 12é", {}, [(QUANTITY, "12")]),  # digits are ASCII, é is no word character
        ("12a a12 1_2", {}, []),
        ('says "all good" now', {"a#0": {"x": "ALL GOOD!"}}, []),
        ('says "all good" now', {"a#0": {"all": "good"}}, []),
        ('says "all good" now', {}, [(QUOTE, "all good")]),
        ("says “all good” now", {}, [(QUOTE, "all good")]),
        ('it is "ok"', {}, []),
        ('"ab" abc "cd" abcd "xyz"', {}, [(QUOTE, "xyz")]),
        ('"odd', {}, []),
        ('"one" and "odd', {}, [(QUOTE, "one")]),
        ('“mixed" styles', {}, []),
        ('"straight “inside” it"', {}, [(QUOTE, "straight “inside” it")]),
        ('“never closed "abc"', {}, [(QUOTE, "abc")]),
        ('"Straße"', {"a#0": "STRASSE"}, [(QUOTE, "Straße")]),  # lower-casing keeps ß
        ('"STRAßE"', {"a#0": "straße"}, []),
        ('"İzmir"', {"a#0": "İZMİR"}, [(QUOTE, "İzmir")]),
        ('"İZMİR"', {"a#0": "İZMİR"}, []),
        ('"null"', {"a#0": {"x": None}}, []),
        ('"true 1"', {"a#0": [True, 1]}, []),
    ],
)  # fmt: skip
def test_claims_of_the_answer_stand_in_the_results(answer, results, expected):
    assert found(answer, results) == expected


def test_filtered_fields_leak_by_name_in_any_case():
    rules = {"filtered_fields": ["privateNotes", "SSN"]}
    assert found("The privatenotes and ssn", rules=rules) == [
        ("FILTERED_FIELD_LEAKED", "privateNotes"),
        ("FILTERED_FIELD_LEAKED", "SSN"),
    ]
    assert found("private notes", {"a#0": {"privateNotes": "x"}}, rules=rules) == []


@pytest.mark.parametrize("phrase", PHRASES)
def test_every_phrase_needs_a_write(phrase):
    answer = f"Your request: {phrase.upper()}."
    assert found(answer, tools=["ticket.get"]) == [("UNSUPPORTED_ACTION_CLAIMED", phrase)]
    assert found(answer, tools=["ticket.get", "Ticket.CLOSE"]) == []


@pytest.mark.parametrize("hint", WRITE_HINTS)
def test_every_hint_backs_an_action(hint):
    assert found("it has been updated", tools=[f"x{hint.title()}y"]) == []


def test_phrases_and_hints_are_those_of_the_plain_transcription():
    assert (list(PHRASES), list(WRITE_HINTS)) == (oracle.PHRASES, oracle.HINTS)


def test_one_claim_of_an_action_is_one_finding():
    assert found("The ticket has been closed. It has been closed. It has been closed!") == [
        ("UNSUPPORTED_ACTION_CLAIMED", "ticket has been closed"),
        ("UNSUPPORTED_ACTION_CLAIMED", "has been closed"),
    ]


@pytest.mark.parametrize(
    ("call", "codes", "undecided"),
    [
        (Call("k", "close"), 0, 0),
        (Call("k", "close", failed=True), 1, 0),
        (Call("k", "close", execution="requested"), 1, 0),
        (Call("k", "close", execution="unknown"), 0, 1),
        (Call("k", "close", execution="unknown", failed=True), 1, 0),
    ],
)
def test_only_a_successful_executed_call_backs_an_action(call, codes, undecided):
    judgement = judge("it has been closed", tools=[call])
    assert (len(judgement.later), len(judgement.undecided)) == (codes, undecided)
    assert judge("nothing is claimed", tools=[call]).undecided == ()
    decided = judge("it has been closed", tools=[call, Call("l", "delete"), call])
    assert (decided.later, decided.undecided) == ((), ())


def test_findings_come_by_check_then_position():
    answer = 'B-22 and A-11, "quoted text", 33, 44. secret has been deleted'
    assert found(answer, rules={"filtered_fields": ["secret"]}) == [
        ("FILTERED_FIELD_LEAKED", "secret"),
        (ID, "b-22"),
        (ID, "a-11"),
        (QUOTE, "quoted text"),
        (QUANTITY, "22"),
        (QUANTITY, "11"),
        (QUANTITY, "33"),
        (QUANTITY, "44"),
        ("UNSUPPORTED_ACTION_CLAIMED", "has been deleted"),
    ]


def test_evidence_is_the_claim_in_its_context():
    answer = "x" * 300 + " SKU-7 " + "y" * 300
    [finding] = judge(answer).later
    assert "SKU-7" in finding.evidence
    assert len(finding.evidence) == 200
    assert finding.evidence[0] == finding.evidence[-1] == "…"
    [finding] = judge('"' + "z" * 500 + '"').later
    assert len(finding.evidence) == 200


@pytest.mark.parametrize(
    ("answer", "results"),
    [
        ("pin 4711, see T-1", {"a#0": {"pin": 4711}}),
        ("call 4711 about T-1", {"a#0": {"PIN": 4711}}),
    ],
)
def test_no_evidence_is_quoted_where_a_filtered_value_may_stand(answer, results):
    judgement = judge(answer, results, rules={"filtered_fields": ["pin"]})
    assert judgement.later
    for finding in judgement.later:
        assert finding.evidence is None
        assert "4711" not in finding.message
    shown = judge("see T-1", {"a#0": 1}, rules={"filtered_fields": ["pin"]}).later
    assert shown[0].evidence == "see T-1"


@given(st.text(st.sampled_from('ab"“”'), max_size=14))
def test_quotes_pair_like_the_plain_transcription(text):
    assert [text[start:end] for start, end in quotes(text)] == oracle.quoted(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=300)
@given(json_values)
def test_flattening_text_and_value_agree_with_the_plain_transcription(value):
    assert flatten(value) == oracle.flat(value)
    assert flatten_json_text(json.dumps(value)) == flatten(value)


@pytest.mark.parametrize(
    ("text", "flat"),
    [
        ('{"a": 1.50, "a": -0, "b": [1e5, {"c": {}}]}', "a 1.50 a -0 b 1e5 c"),
        ('"a\\u00e9\\n"', "aé\n"),
        ("12", "12"),
        ("", ""),
        ("plain {text}", "plain {text}"),
        ("[1, NaN]", "[1, NaN]"),
        ("[-Infinity]", "[-Infinity]"),
        ("{'a': 1}", "{'a': 1}"),
        ("[1] 2", "[1] 2"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_json_text_keeps_its_numbers_and_other_text_stays(text, flat):
    assert flatten_json_text(text) == flat


@pytest.mark.parametrize("depth", [DEPTH_LIMIT + 1, 900, 100_000])
def test_json_nested_too_deeply_is_evidence_as_it_came(depth):
    fine = "[" * DEPTH_LIMIT + '"x"' + "]" * DEPTH_LIMIT
    assert flatten_json_text(fine) == "x"
    objects = '{"a":' * DEPTH_LIMIT + "1" + "}" * DEPTH_LIMIT
    assert flatten_json_text(objects) == "a " * DEPTH_LIMIT + "1"
    deep = "[" * depth + '"x"' + "]" * depth
    assert flatten_json_text(deep) == deep


def test_flattening_a_value_needs_no_stack():
    value = "x"
    for _ in range(50_000):
        value = [value]
    assert flatten(value) == "x"


def test_a_flood_of_claims_is_given_up_on_and_never_trusted():
    corpus = Corpus(budget=10_000)
    corpus.add("a#0", "x" * 1000)
    monitor = GroundingMonitor(Rules())
    answer = " ".join(str(number) for number in range(1000, 2000))
    judgement = monitor.judge(monitor.initial(), answer, corpus)
    assert 0 < len(judgement.later) <= 11
    assert "SAFETY_FABRICATED_QUANTITY" in judgement.undecided


@pytest.mark.parametrize(
    "answer",
    ["“" * 200_000, '"' * 200_001, "A" * 200_000, "A-" * 100_000, "1" * 200_000 + "a",
     "A-1a" * 50_000, "has been " * 20_000],
)  # fmt: skip
def test_hostile_answers_take_linear_time(answer):
    started = time.process_time()
    judge(answer, {"a#0": answer})
    assert time.process_time() - started < 2


def test_a_claimed_action_is_told_after_any_number_of_fabrications():
    judgement = judge(" ".join(f"A-{n}" for n in range(10, 500)) + " has been closed")
    codes = [finding.code for finding in judgement.later]
    assert codes[:200] == ["SAFETY_FABRICATED_ID"] * 200
    assert codes[200:] == ["SAFETY_FABRICATED_QUANTITY", "SAFETY_UNSUPPORTED_ACTION_CLAIMED"]
