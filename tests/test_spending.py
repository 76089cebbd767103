"""Prices by model name."""

from __future__ import annotations

from pathlib import Path

import pytest

from monitor.errors import InputError
from streams.spending import Price, price_of, read_prices


def test_the_shipped_prices_can_be_read() -> None:
    prices = read_prices()
    assert price_of("gpt-4o-mini-2024-07-18", prices) == prices["gpt-4o-mini"]
    assert price_of("gpt-4o-2024-11-20", prices) == prices["gpt-4o"]
    assert price_of("unheard-of", prices) is None


def test_a_price_is_for_a_million_tokens() -> None:
    assert Price(input=2, output=8).cost(500_000, 250_000) == 3.0


@pytest.mark.parametrize(
    ("text", "told"),
    [("m: {input: -1, output: 2}", "input"), ("m: {input: 1}", "output"), ("- m", "mapping")],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=told):
        read_prices(path)
