import json
import math
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor import jsonfile
from monitor.document import load
from monitor.errors import InputError
from monitor.yaml import parse


def value(text):
    return parse(text.encode(), "f.yaml").value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("Off", "Off"),
        ("2024-05-01", "2024-05-01"),
        ("2024-05-01T10:00:00Z", "2024-05-01T10:00:00Z"),
        ("12:30:45", "12:30:45"),
        ("1_000", "1_000"),
        ("=", "="),
        ("<<", "<<"),
        ("true", True),
        ("FALSE", False),
        ("tRUE", "tRUE"),
        ("null", None),
        ("~", None),
        ("", None),
        ("NuLL", "NuLL"),
        ("12", 12),
        ("-12", -12),
        ("+12", 12),
        ("010", 10),
        ("0o10", 8),
        ("0x1f", 31),
        ("-0x1f", "-0x1f"),
        ("1.", 1.0),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("48.0", 48.0),
        ("1e", "1e"),
        (".", "."),
        ("-", None),
        ("'12'", "12"),
        ('"true"', "true"),
        ("|\n  12\n", "12\n"),
        ('"\\u00e9\\/"', "é/"),
    ],
)
def test_scalars_are_those_of_the_core_schema(text, expected):
    found = value(text if text != "-" else "- ")
    assert (found if text != "-" else found[0]) == expected
    assert type(found if text != "-" else found[0]) is type(expected)


def test_keys_are_text():
    assert value("{1: a, no: b, null: c, 1.50: d}") == {
        "1": "a",
        "no": "b",
        "null": "c",
        "1.50": "d",
    }


def test_an_empty_file_holds_nothing():
    assert value("") is None
    assert value("# only a comment\n") is None
    assert parse(b"\xef\xbb\xbfa: 1", "f").value == {"a": 1}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a: 1\nb: 2\na: 3", "f.yaml:3: key 'a' stands here twice"),
        (b"{x: {a: 1, 'a': 2}}", "f.yaml:1: key 'a' stands here twice"),
        (b"a: &x [1]\n", "f.yaml:1: anchor &x: anchors are refused"),
        (b"a: &x 1\n", "f.yaml:1: anchor &x: anchors are refused"),
        (b"- a\n- *x\n", "f.yaml:2: alias *x: aliases are refused"),
        (b"a: !!python/object:os.system [x]", "tag tag:yaml.org,2002:python/object:os.system"),
        (b"a: !!str 1", "tag tag:yaml.org,2002:str"),
        (b"a: !x {}", "tag !x"),
        (b"a: 1\n---\nb: 2\n", "f.yaml:2: a second document; allowed: one document a file"),
        (b"a: b: c", "f.yaml:1: is not YAML: "),
        (b"a: [1, 2", "f.yaml:2: is not YAML: "),
        (b"a:\n\t- 1", "f.yaml:2: is not YAML: "),
        (b"a: 1\nb: \xff", "f.yaml:2: is not UTF-8 text"),
        (b"a: 1\nb: \x07", "f.yaml:2: is not YAML: "),
        (b"? [a]\n: 1", "f.yaml:1: a list or mapping as a key; allowed: text"),
        (b"? {a: 1}\n: 1", "f.yaml:1: a list or mapping as a key; allowed: text"),
        (b"- " * 65 + b"x", "f.yaml:1: nested too deeply; allowed: 64 levels"),
        (b"[" * 100_000, "f.yaml:1: is not YAML: "),
        (b"a: .inf", "f.yaml:1: .inf is no number that JSON can write"),
        (b"a: -.INF", "f.yaml:1: -.INF is no number that JSON can write"),
        (b"a: .nan", "f.yaml:1: .nan is no number that JSON can write"),
        (b"a: 1e999", "f.yaml:1: number 1e999 is too large"),
        (b"a: " + b"9" * 5000, "f.yaml:1: a number of 5000 digits; allowed: 3000"),
        (b"a: 0x" + b"9" * 5000, "f.yaml:1: a number of 5002 digits; allowed: 3000"),
        (b"a: " + b"x" * (1 << 20), "f.yaml: 1048579 bytes; allowed: at most 1048576 bytes"),
    ],
)  # fmt: skip
def test_bad_files_give_one_line_with_file_and_line(data, message):
    with pytest.raises(InputError) as error:
        parse(data, "f.yaml")
    assert str(error.value).startswith(message) or message in str(error.value)
    assert "\n" not in str(error.value)
    assert str(error.value).isprintable()


def test_an_anchor_bomb_is_refused_at_its_first_anchor():
    bomb = b"a: &a [x, x]\n" + b"".join(
        b"%c: &%c [%s]\n" % (c + 1, c + 1, b", ".join([b"*%c" % c] * 9)) for c in range(97, 121)
    )
    with pytest.raises(InputError, match=r"^f:1: anchor &a"):
        parse(bomb, "f")


def test_a_huge_file_is_refused_by_its_size_before_it_is_read(tmp_path):
    path = tmp_path / "big.yaml"
    with path.open("wb") as file:
        file.truncate(3 << 30)  # a hole: reading it would take 3 GiB
    started = time.process_time()
    with pytest.raises(InputError, match=r"3221225472 bytes; allowed: at most 1048576 bytes"):
        load(path, 1 << 20)
    assert time.process_time() - started < 1


def test_the_size_limit_is_an_argument(tmp_path):
    path = tmp_path / "f.yaml"
    path.write_text("a: 1")
    assert parse(load(path, 4), "f", limit=4).value == {"a": 1}
    with pytest.raises(InputError, match="4 bytes; allowed: at most 3 bytes"):
        load(path, 3)
    with pytest.raises(InputError, match="4 bytes; allowed: at most 3 bytes"):
        jsonfile.parse(b"null", "f", limit=3)


def test_files_that_are_none_are_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.yaml: cannot be read: No such file"):
        load(tmp_path / "none.yaml", 10)
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(InputError, match=r"pipe\.yaml: is no file"):
        load(tmp_path / "pipe.yaml", 10)
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        load(tmp_path, 10)


def test_lines_of_fields_stay_known():
    document = parse(b"a: 1\nb:\n  - x\n  - c: 2\n    d: 3\n", "f")
    assert document.line(["a"]) == 1
    assert document.line(["b", 0]) == 3
    assert document.line(["b", 1, "d"]) == 5
    assert document.line(["b", 7]) == 2
    assert document.line([]) == 1
    assert str(document.error(["b", 1, "d"], "is odd", "even")) == (
        "f:5: b[1].d: is odd; allowed: even"
    )


def test_names_of_files_and_keys_cannot_move_the_cursor():
    with pytest.raises(InputError) as error:
        parse(b'"\\e[2J": 1\n"\\e[2J": 2', "\x1b]0;x\x07.yaml")
    assert str(error.value).isprintable()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=15,
)  # fmt: skip


@given(json_values)
def test_what_json_writes_is_read_as_it_was(value):
    for ascii_only in (True, False):
        data = json.dumps(value, ensure_ascii=ascii_only, indent=1).encode()
        assert jsonfile.parse(data, "f").value == value


@given(json_values.map(lambda v: json.dumps(v, ensure_ascii=False)))
def test_yaml_reads_json_alike(text):
    if text.isprintable():  # YAML refuses control characters
        assert parse(text.encode(), "f").value == jsonfile.parse(text.encode(), "f").value


@given(
    st.binary(max_size=60)
    | st.text(st.sampled_from('{}[],:"\\ \n1e.-truefalsn'), max_size=30).map(str.encode)
)
def test_any_bytes_give_a_value_or_the_one_error(data):
    for read in (parse, jsonfile.parse):
        try:
            read(data, "f")
        except InputError as error:
            assert str(error).startswith("f:")  # noqa: PT017  # the error's text is what is tested


@given(st.text(st.sampled_from('{}[],:"\\ \n1e0.-"truefalsn'), max_size=30))
def test_json_is_what_the_standard_library_takes_for_it(text):
    try:
        expected = json.loads(
            text, parse_constant=lambda _: 1 / 0, parse_float=finite, object_pairs_hook=no_doubles
        )
    except (ValueError, ZeroDivisionError):
        with pytest.raises(InputError):
            jsonfile.parse(text.encode(), "f")
    else:
        assert jsonfile.parse(text.encode(), "f").value == expected


def finite(text):
    if math.isinf(float(text)):
        raise ValueError
    return float(text)


def no_doubles(pairs):
    if len(dict(pairs)) < len(pairs):
        raise ValueError
    return dict(pairs)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "f.json:1: is not JSON at the end of the file"),
        (b"{\n 'a': 1}", "f.json:2: is not JSON at \"'a': 1}\""),
        (b'{"a": 1,\n}', "f.json:2: is not JSON at '}'"),
        (b'{"a": 1,\n"a": 2}', "f.json:2: key 'a' stands here twice"),
        (b"[1\n2]", "f.json:2: is not JSON at '2'"),
        (b"[1] 2", "f.json:1: is not JSON at '2'"),
        (b"[NaN]", "f.json:1: is not JSON at 'NaN]'"),
        (b'["\\ud800"]', "f.json:1: half a surrogate pair; allowed: Unicode text"),
        (b'["\\x"]', "f.json:1: is not JSON at "),
        (b"[" * 100_000, "f.json:1: nested too deeply; allowed: 64 levels"),
        (b'{"a":' * 100_000, "f.json:1: nested too deeply; allowed: 64 levels"),
        (b"9" * 5000, "f.json:1: a number of 5000 digits; allowed: 3000"),
        (b"[1e999]", "f.json:1: number 1e999 is too large"),
        (b"[\xff]", "f.json:1: is not UTF-8 text"),
    ],
)
def test_bad_json_gives_one_line_with_file_and_line(data, message):
    with pytest.raises(InputError) as error:
        jsonfile.parse(data, "f.json")
    assert str(error.value).startswith(message)
    assert str(error.value).isprintable()
