"""Constants of XXH3-64 without a seed (Collet, xxHash 0.8): words of its secret."""

PRIME = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
PRIME32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
AVALANCHE = 0x165667919E3779F9
# The accumulators of eight lanes at the start.
START = (PRIME32[2], *PRIME[:4], PRIME32[1], PRIME[4], PRIME32[0])

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


def secret(offset: int, count: int) -> tuple[int, ...]:
    """Words of 8 bytes of the secret, from a byte on.

    >>> hex(*secret(0, 1))
    '0xbe4ba423396cfeb8'
    """
    ends = range(offset, offset + 8 * count, 8)
    return tuple(int.from_bytes(_SECRET[i : i + 8], "little") for i in ends)


STRIPES = secret(0, 24)
MERGE = secret(11, 8)
LAST_STRIPE = secret(121, 8)
LATE_PAIRS = secret(3, 14)  # of 129 to 240 bytes, from the ninth pair of words on
LAST_PAIR = secret(119, 2)
