from thinwire.tools.cli import formatting


def test_numbers_keep_three_digits_at_every_prefix():
    numbers = [0, 1, 999, 999.6, 1000, 999_499, 1e6, 4_918_000, 2.5e15]
    assert [formatting.count(n) for n in numbers] == [
        "0",
        "1",
        "999",
        "1 k",
        "1 k",
        "999 k",
        "1 M",
        "4.92 M",
        "2.5 P",
    ]
