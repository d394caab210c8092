"""SplitMix64 (Steele, Lea and Flood, 2014), begun at a scrambled key."""

STEP = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
WORD = 0xFFFFFFFFFFFFFFFF


def scrambled(word: int) -> int:
    """Each of 2**64 words to another, near ones to distant ones.

    A key is scrambled before it is stepped on from: keys that are a step apart, as
    those of neighbouring seeds are, would give the same numbers one place later.

    >>> hex(scrambled(STEP))
    '0xe220a8397b1dcdaf'
    """
    word &= WORD
    word = (word ^ (word >> 30)) * FIRST & WORD
    word = (word ^ (word >> 27)) * SECOND & WORD
    return word ^ (word >> 31)


def lot(key: int, number: int) -> int:
    """64 random bits, the `number`-th of a key.

    >>> hex(lot(0, 0))
    '0xe220a8397b1dcdaf'
    """
    return scrambled(scrambled(key) + (number + 1) * STEP)
