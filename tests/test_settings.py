from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams import setting_values as v
from streams import settings as s


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    import os

    for name in list(os.environ):
        if name.startswith(s.PREFIX):
            monkeypatch.delenv(name)


def refused(**environment) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(s.PREFIX + name, value)
        with pytest.raises(s.SettingsError) as caught:
            s.load()
    return list(caught.value.lines)


def test_defaults_stand_alone():
    settings = s.load()
    assert settings.settle_delay == 5
    assert settings.max_bytes == 8 * 1024**2
    assert settings.services == ()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5s", 5), ("300", 300), ("24h", 86_400), ("250ms", 0.25), ("1.5m", 90), ("2 d", 172_800)],
)
def test_durations(text, seconds):
    assert v.parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"), [("8MiB", 8_388_608), ("1MB", 1_000_000), ("17", 17), ("2 KiB", 2048)]
)
def test_sizes(text, size):
    assert v.parse_size(text) == size


@given(st.text())
def test_a_duration_is_finite_or_refused(text):
    try:
        seconds = v.parse_duration(text)
    except ValueError:
        return
    assert 0 <= seconds < float("inf")


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("SETTLE_DELAY", "fast", "a number with ms, s, m, h or d"),
        ("SETTLE_DELAY", "-1s", "0s to 1h"),
        ("SETTLE_DELAY", "nan", "0s to 1h"),
        ("MAX_BYTES", "8 parsecs", "KiB"),
        ("PARTITIONS", "0", "1 to 1000"),
        ("PARTITIONS", "many", "1 to 1000"),
        ("EVIDENCE", "some", "plain, hash or off"),
        ("KAFKA_BOOTSTRAP", "kafka", "host:port"),
        ("KAFKA_BOOTSTRAP", "kafka:99999", "host:port"),
        ("REDIS_URL", "http://redis", "redis://"),
        ("REDIS_URL", "redis://redis:port", "redis://"),
        ("SPANS_TOPIC", "a b", "characters"),
        ("TOPIC_PREFIX", "", "characters"),
        ("CONTRACTS", "/no/such/folder", "existing directory"),
        ("GATEWAY_LISTEN", "tcp://10.0.0.1:4318/x", "host:port"),
        ("LOG_LEVEL", "loud", "debug, info"),
    ],
)
def test_a_wrong_value_is_refused_with_name_value_and_what_is_allowed(name, value, allowed):
    (line,) = refused(**{name: value})
    assert line.startswith(f"AGENTTRUST_{name}={value}: ")
    assert allowed in line


def test_every_wrong_value_is_told_at_once():
    lines = refused(PARTITIONS="0", EVIDENCE="some")
    assert [line.split("=")[0] for line in lines] == [
        "AGENTTRUST_PARTITIONS",
        "AGENTTRUST_EVIDENCE",
    ]


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        (
            {"IDLE_TIMEOUT": "1s"},
            "AGENTTRUST_IDLE_TIMEOUT=1s: shorter than AGENTTRUST_SETTLE_DELAY",
        ),
        ({"STATE_TTL": "24h"}, "AGENTTRUST_STATE_TTL=24h: shorter than AGENTTRUST_MAX_AGE + 1h"),
        (
            {"JOURNAL_RETENTION": "3d", "STATE_TTL": "72h"},
            (
                "AGENTTRUST_JOURNAL_RETENTION=3d: shorter than "
                "AGENTTRUST_STATE_TTL + AGENTTRUST_ALLOWED_LAG"
            ),
        ),
    ],
)
def test_settings_that_do_not_fit_together(environment, line):
    assert refused(**environment) == [line]


def test_overrides_win_and_none_is_not_given(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("AGENTTRUST_SETTLE_DELAY", "7s")
    settings = s.load(settle_delay=None, contracts=tmp_path)
    assert (settings.settle_delay, settings.contracts) == (7, tmp_path)


def test_lists(monkeypatch):
    monkeypatch.setenv("AGENTTRUST_SERVICES", "shop, desk ,")
    assert s.load().services == ("shop", "desk")


def test_secrets_are_never_shown():
    url = "redis://user:hunter2@h:1/0"
    settings = s.load(redis_url=url)
    assert "hunter2" not in repr(settings) + str(settings) + str(settings.shown())
    for wrong in (url.replace("redis:", "http:"), "redis://h/0?password=hunter2"):
        assert "hunter2" not in "".join(refused(REDIS_URL=wrong))


def test_a_hostile_value_cannot_reach_the_terminal():
    (line,) = refused(EVIDENCE="\x1b[2J\n" + "x" * 500)
    assert "\x1b" not in line
    assert "\n" not in line
    assert len(line) < 200


def test_a_misspelt_name_is_told_and_a_foreign_one_is_not():
    found = s.misspelt(
        {"AGENTTRUST_SETTLE_DELY": "1", "AGENTTRUST_GATEWAY_SERVICE_HOST": "", "PATH": ""}
    )
    assert found == [
        "AGENTTRUST_SETTLE_DELY is no setting and is ignored; meant: AGENTTRUST_SETTLE_DELAY?"
    ]


def test_the_page_names_every_setting():
    page = s.markdown()
    assert all(f"`{s.variable(name)}`" in page for name in s.Settings.model_fields)
