"""Random words of 64 bits by SplitMix64 (Steele, Lea and Flood, 2014)."""

STEP = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
WORD = 0xFFFFFFFFFFFFFFFF


def mixed(word: int) -> int:
    """A bijection of 64-bit words that maps near words to distant ones.

    A key is mixed before its words are drawn: the keys of neighbouring seeds are STEP
    apart, and unmixed they would give the same words one place later.

    >>> hex(mixed(STEP))
    '0xe220a8397b1dcdaf'
    """
    word &= WORD
    word = (word ^ (word >> 30)) * FIRST & WORD
    word = (word ^ (word >> 27)) * SECOND & WORD
    return word ^ (word >> 31)


def random_word(key: int, number: int) -> int:
    """Word `number` of the sequence that a key seeds.

    >>> hex(random_word(0, 0))
    '0xe220a8397b1dcdaf'
    """
    return mixed(mixed(key) + (number + 1) * STEP)
