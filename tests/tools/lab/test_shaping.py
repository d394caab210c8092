import pytest

from thinwire.errors import ConfigError
from thinwire.tools.lab.shaping import (
    Shape,
    disciplines,
    parse_loss,
    parse_rates,
    rate_name,
    shapes,
)
from thinwire.tools.quantities import parse_rate

FRAME = 1514


@pytest.mark.parametrize("text", ["100kbit", "10mbit", "100mbit", "1gbit", "2.5gbit"])
def test_a_rate_is_written_as_it_is_read(text):
    assert rate_name(parse_rate(text)) == text


def test_spaces_and_capitals_do_not_matter():
    assert parse_rates(" 1Gbit, 100MBIT ", 2) == (10**9, 10**8)


@pytest.mark.parametrize(
    "text", ["", "fast", "1", "1gb", "-1gbit", "0mbit", "1 000mbit", "1e3mbit", "1tbit"]
)
def test_what_is_no_rate_is_named(text):
    with pytest.raises(ConfigError, match=f"rate is '{text}': give a number"):
        parse_rate(text)


def test_no_link_is_faster_than_can_be_stated():
    assert parse_rate("100gbit") == 10**11
    with pytest.raises(ConfigError, match="at most 100gbit"):
        parse_rate("101gbit")


@pytest.mark.parametrize(("rates", "hosts"), [("1gbit,1gbit", 3), ("1gbit,1gbit", 1)])
def test_as_many_rates_as_hosts(rates, hosts):
    with pytest.raises(ConfigError, match=f"2 rates for {hosts} hosts"):
        parse_rates(rates, hosts)


@pytest.mark.parametrize("rate", [10**5, 10**7, 10**8, 10**9, 10**10, 10**11])
def test_a_frame_fits_the_bucket_and_packets_are_smaller_than_it(rate):
    shape = Shape(rate)
    assert shape.burst >= FRAME
    assert shape.segments < shape.burst < shape.queue
    assert shape.segments <= 65536


def test_packets_are_pairs_of_frames_where_a_bucket_holds_one():
    """TCP makes a pair only where there is room for headers besides."""
    pair = 2 * FRAME + 320
    assert Shape(10**7).segments < pair
    assert Shape(10**8).segments == pair <= Shape(10**8).burst


def test_the_card_of_a_link_and_its_discipline_agree():
    shape = Shape(10**8)
    assert shape.link.transfer(12_500_000) == 1.0
    assert shape.discipline() == "tbf rate 100000000bit burst 3400 limit 625000"


@pytest.mark.parametrize(
    ("rates", "processors", "burst"),
    [
        ([10**9] * 2, 2, 12_400),
        ([10**8] * 8, 2, 3_400),
        ([10**9] * 4, 2, 64_900),
        ([10**9] * 8, 2, 127_400),
        ([10**9] * 8, 8, 12_400),
        ([10**9] * 200, 2, 252_400),
    ],
)
def test_bursts_grow_where_processors_are_few(rates, processors, burst):
    assert {shape.burst for shape in shapes(rates, processors)} == {burst}


def test_without_delay_and_loss_nothing_but_the_bucket_is_asked_of_the_kernel():
    shape = Shape(10**8)
    assert disciplines("eth0", shape) == [
        f"qdisc replace dev eth0 root {shape.discipline()}"
    ]


def test_what_is_delayed_or_lost_goes_through_the_bucket_after_it():
    shape = Shape(10**9)
    late, bucket = disciplines("eth0", shape, delay=0.05, loss=0.001)
    assert late.endswith("handle 1: netem limit 10417 delay 50000us loss 0.1%")
    assert 0.05 * shape.rate / 8 <= 10417 * 600  # what is under way is not dropped
    assert bucket.endswith(f"parent 1:1 handle 10: {shape.discipline()}")
    assert "delay" not in disciplines("eth0", shape, loss=0.001)[0]
    assert "loss" not in disciplines("eth0", shape, delay=0.001)[0]


@pytest.mark.parametrize("text", ["", "0.1", "-1%", "51%", "1e1%", "all"])
def test_what_is_no_loss_is_named(text):
    with pytest.raises(ConfigError, match=f"loss is '{text}'"):
        parse_loss(text)
