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
