"""The colours of charts and pages: one for ours, one for what is compared."""

# Each at least 3 to 1 against the page and its cards, text at least 4.5, in both
# schemes. Groups are the parts of a bar: told apart by lightness too.
_LIGHT = {
    "page": "#ffffff",
    "card": "#f5f6f8",
    "ink": "#16181d",
    "soft": "#4a505a",
    "rule": "#d3d7de",
    "ours": "#0b7d72",
    "theirs": "#5f6673",
    "g0": "#b0307e",
    "g1": "#7a3fb5",
    "g2": "#1f5fbf",
    "g3": "#a8480a",
    "g4": "#767c87",
}
_DARK = {
    "page": "#14161a",
    "card": "#1d2026",
    "ink": "#eceef2",
    "soft": "#b3bac5",
    "rule": "#3d434e",
    "ours": "#2fc4b2",
    "theirs": "#949cab",
    "g0": "#f48cc6",
    "g1": "#c39bf0",
    "g2": "#7aa7ff",
    "g3": "#ff9e57",
    "g4": "#949cab",
}
GROUPS = 5


def variables(selector: str) -> str:
    """The colours as CSS variables of what a selector finds."""
    light, dark = (
        "".join(f"--{name}:{value};" for name, value in each.items())
        for each in (_LIGHT, _DARK)
    )
    return (
        f"{selector}{{{light}}}\n"
        f"@media(prefers-color-scheme:dark){{{selector}{{{dark}}}}}"
    )
