"""Colors of the figures, and the variables of the page that replace them."""

INK, MUTED, GRID = "#1f2328", "#59636e", "#d1d9e0"
POSITIVE, NEGATIVE = "#0a5ec2", "#b84a05"
SERIES = (
    "#0969da", "#bc4c00", "#1a7f37", "#8250df", "#cf222e",
    "#0e7490", "#9a6700", "#bf3989", "#4d5561", "#7a3e00",
)  # fmt: skip
CSS_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--line)",
    POSITIVE: "var(--positive)",
    NEGATIVE: "var(--negative)",
    **{color: f"var(--series-{index})" for index, color in enumerate(SERIES)},
}
"""CSS variable of the page for each color of the figures; page.css defines them for light and dark mode."""
