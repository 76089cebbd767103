"""Generated golden cases, as plain dicts: few words, so that they meet; odd ones, so that it hurts."""

from hypothesis import strategies as st

TOOLS = ["ticket.search", "ticket.get", "ticket.update", "Set_Flag", "lookup", "İclose", "\u017fet"]
FIELDS = ["query", "id", "status", "notes", "locale"]
BLANKS = ["", " ", "\t\n", "\u00a0", "\u2003", "\u200b"]

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-12, 120),
    st.sampled_from([0, 10, 1000, 2**70, 0.0, -0.0, 48.0, 1e16, 1e-7, 12.50]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([*BLANKS, "true", "10", "48.0", "en", "de", "null", "SKU-42", "a b", "ß", "İ"]),
    st.text(st.sampled_from("ab -_\"“”'Σςé12٣A\\/\n"), max_size=8),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from([*FIELDS, ""]), inner, max_size=3),
    ),
    max_leaves=5,
)
parameters = st.one_of(st.none(), st.dictionaries(st.sampled_from(FIELDS), values, max_size=4))
tools = st.lists(st.sampled_from(TOOLS), max_size=4)
names = st.lists(st.sampled_from(FIELDS), max_size=2)
rules = st.fixed_dictionaries(
    {},
    optional={
        "required": names,
        "forbidden": names,
        "allowed_values": st.dictionaries(
            st.sampled_from(FIELDS), st.lists(scalars, max_size=3), max_size=2
        ),
    },
)
words = st.sampled_from(
    [
        "SKU-42", "SKU-421", "xSKU-42", "sku-42", "A-1", "ABC-007", "é12", "12é", "_12", "1000",
        "48.0", "48.00", "1,234.50", "٣٣", "has been closed", "The ticket has been closed",
        "Updated  successfully", "updated SUCCESSFULLY", "successfully deleted", "closed the ticket",
        "has been updated", '"', "“", "”", "„", '"ab"', '"abc"', "“wireless mouse”", "“ß ”", '"İ"',
        "notes", "NOTES", "Status", "en", "de", "wireless mouse", "Σ", "ΑΣ", "-", "TICKET-9-10",
    ]
)  # fmt: skip
answers = st.one_of(
    st.none(),
    st.sampled_from(BLANKS),
    st.builds(
        lambda parts, glue: glue.join(parts),
        st.lists(words, min_size=1, max_size=7),
        st.sampled_from([" ", "", ". "]),
    ),
)
results = st.one_of(values, words, st.lists(words, max_size=3))


@st.composite
def cases(draw):
    """A case whose result keys may name its calls, or none."""
    called = draw(tools)
    keys = [f"{tool}#{index}" for index, tool in enumerate(called)] + ["stray#9"]
    trace = {
        "tool_calls": [
            {"tool": tool} if (given := draw(st.one_of(st.just(...), parameters))) is ...
            else {"tool": tool, "parameters": given}
            for tool in called
        ],
        "tool_results": {key: draw(results) for key in keys if draw(st.booleans())},
        "final_answer": draw(answers),
    }  # fmt: skip
    case = {"case_id": "G1", "expected_decision": "PASS", "mock_trace": trace}
    for field, strategy in (
        ("allowed_tools", tools),
        ("forbidden_tools", st.lists(st.sampled_from(TOOLS), max_size=1)),
        ("parameter_rules", st.dictionaries(st.sampled_from(TOOLS), rules, max_size=3)),
        ("filtered_fields", names),
        ("expected_trajectory", st.one_of(tools, st.just(called))),
        ("trajectory_mode", st.sampled_from(["strict", "relaxed"])),
        ("forbidden_intermediates", st.lists(st.sampled_from(TOOLS), max_size=1)),
        ("no_repeats", st.lists(st.sampled_from(TOOLS), max_size=2)),
    ):
        if draw(st.booleans()):
            case[field] = draw(strategy)
    return case


# -- many, quickly: the same ingredients from a seeded generator ----------------------------

WORDS = [
    "SKU-42", "SKU-421", "sku-42", "A-1", "é12", "12é", "1000", "48.0", "48.00", "1,234.50", "٣٣",
    "has been closed", "The ticket has been closed", "updated SUCCESSFULLY", "closed the ticket",
    '"', "“", "”", '"ab"', '"abc"', "“wireless mouse”", '"İst"', "“Straße”", "notes", "NOTES",
    "Status", "en", "wireless mouse", "ΑΣ", "-", "TICKET-9-10", "7", "\u2003", "",
]  # fmt: skip
SCALARS = [
    None, True, False, 0, 1, 10, 12, 42, -7, 2**70, 0.0, -0.0, 48.0, 1e16, 1e-7, 12.5, *BLANKS, "true",
    "10", "48.0", "en", "de", "null", "SKU-42", "a b", "ß", "İ", "wireless MOUSE", "abc", "1000",
]  # fmt: skip


def random_value(rng, depth=2):
    kind = rng.random()
    if depth and kind < 0.15:
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if depth and kind < 0.35:
        keys = rng.sample([*FIELDS, ""], rng.randrange(4))
        return {key: random_value(rng, depth - 1) for key in keys}
    return rng.choice(SCALARS)


def random_case(rng, number):
    """One of `cases`, a hundred times as fast."""

    def some(names, most):
        return rng.choices(names, k=rng.randrange(most + 1))

    def maybe(chance, make):
        return make() if rng.random() < chance else ...

    called = some(TOOLS, 4)
    answer = rng.choice([" ", "", ". "]).join(some(WORDS, 5))
    trace = {
        "tool_calls": [
            {
                "tool": tool,
                "parameters": maybe(
                    0.8, lambda: {key: random_value(rng) for key in some(FIELDS, 3)}
                ),
            }
            for tool in called
        ],
        "tool_results": {
            key: rng.choice([random_value(rng, 3), some(WORDS, 3), answer])
            for key in [*(f"{tool}#{at}" for at, tool in enumerate(called)), "stray#9"]
            if rng.random() < 0.7
        },
        "final_answer": maybe(0.9, lambda: answer),
    }
    for call in trace["tool_calls"]:
        if call["parameters"] is ...:
            del call["parameters"]
    if trace["final_answer"] is ...:
        trace["final_answer"] = None
    case = {
        "case_id": f"G{number}",
        "expected_decision": "PASS",
        "allowed_tools": maybe(0.3, lambda: [*TOOLS[:5], *some(TOOLS, 2)]),
        "forbidden_tools": maybe(0.3, lambda: some(TOOLS, 1)),
        "parameter_rules": maybe(
            0.5,
            lambda: {
                tool: {
                    "required": some(FIELDS, 1),
                    "forbidden": some(FIELDS, 1),
                    "allowed_values": {key: some(SCALARS, 9) for key in some(FIELDS, 1)},
                }
                for tool in some(TOOLS, 2)
            },
        ),
        "filtered_fields": maybe(0.3, lambda: some(FIELDS, 2)),
        "expected_trajectory": maybe(0.6, lambda: rng.choice([called, called[1:], some(TOOLS, 3)])),
        "trajectory_mode": maybe(0.6, lambda: rng.choice(["strict", "relaxed"])),
        "forbidden_intermediates": maybe(0.3, lambda: some(TOOLS, 1)),
        "no_repeats": maybe(0.3, lambda: some(TOOLS, 2)),
        "mock_trace": trace,
    }
    return {field: value for field, value in case.items() if value is not ...}
