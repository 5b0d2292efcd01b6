"""How pictures look: in daylight, and on a dark page."""

from dataclasses import dataclass
from typing import Any

COLOURS = ("#0072b2", "#d98a00", "#009e73", "#b8589a", "#56b4e9", "#d55e00")
"""Blue, orange, green, violet, light blue, red: also those who tell few colours apart can tell these apart.

After Okabe and Ito 2008, "Color Universal Design"; orange and violet are darker here, to be seen on white as lines.
"""

MARKERS = "osD^vP"
DASHES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Look:
    """The colours of a picture. `colours` are those of lines, in order; `faint` is for grids and edges of a graph."""

    paper: str
    ink: str
    faint: str
    colours: tuple[str, ...]

    def line(self, index: int) -> dict[str, Any]:
        """Return how the line of a run is drawn; from the first 24 on, the looks come again."""
        turn, place = divmod(index, len(self.colours))
        return {
            "color": self.colours[place],
            "marker": MARKERS[(place + turn) % len(MARKERS)],
            "linestyle": DASHES[turn % len(DASHES)],
        }


_BLUE, _ORANGE, _GREEN, _VIOLET, _SKY, _RED = COLOURS

LIGHT = Look("#ffffff", "#22272e", "#8d99a6", (_BLUE, _RED, _GREEN, _VIOLET, _ORANGE, _SKY))
DARK = Look("#1b1f24", "#e3e7ec", "#76828f", ("#4aa8e8", "#f08048", "#2cc298", "#dd8cc2", "#f0b030", "#a8d8f8"))


def plain(text: str, limit: int = 72) -> str:
    """Return text as a picture shows it: cut in the middle, on one line, and with no mathematics in it."""
    line = "".join(c if c.isprintable() else " " for c in text)
    if len(line) > limit:
        line = f"{line[: limit - limit // 3 - 1]}…{line[-(limit // 3) :]}"
    # A name that begins with "_" is left out of legends, unless there is something before it.
    return (" " if line.startswith("_") else "") + line.replace("$", r"\$")


def dress(axes: Any, look: Look) -> None:
    """Give axes the colours of a look."""
    axes.set_facecolor(look.paper)
    axes.tick_params(which="both", colors=look.ink, labelsize=9)
    for name in ("top", "right"):
        axes.spines[name].set_visible(False)
    for name in ("bottom", "left"):
        axes.spines[name].set_color(look.faint)
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
        text.set_color(look.ink)
    axes.grid(color=look.faint, alpha=0.25, linewidth=0.8)
    axes.set_axisbelow(True)
