"""Which token bucket slows a lab's links down best? Needs root; about two minutes.

    sudo .venv/bin/python benchmarks/bursts.py

For each burst and each largest packet: the rate of a long transfer, alone and while all
hosts send, and the times of single messages, as shares of the nominal ones. A share
below 0.9 is a message that crosses unshaped.
"""

from unittest.mock import patch

from thinwire.quantities import parse_rate
from thinwire.tools.lab.shaping import Shape, shapes
from thinwire.tools.lab.verify import MESSAGES, verify

# (rate, hosts): (burst, largest packet); the lab's own choice comes last.
TRIED = {
    ("1gbit", 2): [
        (256_000, 65_536),
        (128_000, 65_536),
        (32_000, 65_536),
        (32_000, 1_514),
        (32_000, 21_333),
        (22_764, 15_176),
        (8_000, 5_333),
    ],
    ("100mbit", 2): [(64_000, 65_536), (8_000, 5_333), (3_639, 2_426), (2_000, 1_514)],
    ("1gbit", 8): [(256_000, 65_536), (22_764, 15_176)],
    ("100mbit", 8): [(64_000, 65_536), (14_000, 9_333), (3_639, 2_426)],
}


def row(rate: str, hosts: int, burst: int, segments: int) -> str:
    with patch.object(Shape, "burst", burst), patch.object(Shape, "segments", segments):
        found = verify(rate, hosts)
    rates = [1 / found.alone.share, 1 / found.together.share]
    shares = [each.share for each in found.messages]
    cells = [rate, hosts, burst, segments, *(f"{x:.2f}" for x in (*rates, *shares))]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    messages = " | ".join(f"{size // 1000} kB" for size in MESSAGES)
    print(f"| link | hosts | burst | packet | rate | rate, all | {messages} |")
    print("| " + "--- | " * (6 + len(MESSAGES)))
    for (rate, hosts), tried in TRIED.items():
        own = shapes([parse_rate(rate)] * hosts)[0]
        for burst, segments in [*tried, (own.burst, own.segments)]:
            print(row(rate, hosts, burst, segments), flush=True)


if __name__ == "__main__":
    main()
