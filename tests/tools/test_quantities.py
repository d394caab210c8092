import pytest

from thinwire.errors import ConfigError
from thinwire.tools.quantities import parse_count, parse_duration, parse_rate


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("25000000", 25_000_000),
        ("25e6", 25_000_000),
        ("25M", 25_000_000),
        ("25 m", 25_000_000),
        ("1.1k", 1100),
        ("7b", 7_000_000_000),
        ("1.5B", 1_500_000_000),
        ("0", 0),
        ("-1", -1),
    ],
)
def test_counts(text, number):
    assert parse_count(text, "size") == number


@pytest.mark.parametrize("text", ["abc", "", "nan", "inf", "1.5", "25MM", "M", "25 Q"])
def test_only_whole_numbers_are_counts(text):
    with pytest.raises(ConfigError, match=f"size is '{text}'"):
        parse_count(text, "size")


@pytest.mark.parametrize(
    "text",
    ["1gbit", "1Gbit", "1GBIT", "1Gbps", "1 gbps", "1gbit/s", "1Gb/s", "1000mbit"],
)
def test_one_rate_in_many_spellings(text):
    assert parse_rate(text) == 10**9


@pytest.mark.parametrize("text", ["1GB/s", "1GBps", "1gb", "1g", "gbit", "1tbit", ""])
def test_bytes_and_what_has_no_unit_are_no_rate(text):
    with pytest.raises(ConfigError, match="in bits"):
        parse_rate(text)


def test_durations():
    assert parse_duration("100us", "latency") == parse_duration("0.1ms", "latency")
    with pytest.raises(ConfigError, match="latency is '1'"):
        parse_duration("1", "latency")
