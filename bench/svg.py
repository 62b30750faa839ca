"""Pictures as SVG text: the same bytes for the same numbers, and one file for light and dark.

A browser that shows such a file in a page gives it the page's colour scheme, so the colours are
classes of a style sheet with a part for dark pages. The background is painted, so that a viewer
that mistakes the scheme shows a card that can be read. Texts are put down without transformation,
each with its own size and anchor: so a test can compute where they lie.
"""

import itertools
from xml.sax.saxutils import escape

# The colours of Okabe and Ito, which colour-blind people can tell apart. Those of texts and of dark
# pages are moved towards dark and light, for contrast.
LIGHT = {"paper": "#ffffff", "band": "#f3f5f8", "grid": "#d8dee4", "call": "#cfd7df",
         "soft": "#59636e", "ink": "#1f2328", "dark": "#1f2328",
         "none": "#6e7781", "nvidia": "#d55e00", "openmps": "#0072b2",
         "green": "#009e73", "yellow": "#dcc60a", "sky": "#56b4e9", "purple": "#cc79a7",
         "label-none": "#59636e", "label-nvidia": "#a84a00", "label-openmps": "#00619a"}
DARK = {"paper": "#0d1117", "band": "#161b22", "grid": "#30363d", "call": "#3d444d",
        "soft": "#9198a1", "ink": "#e6edf3", "dark": "#0d1117",
        "none": "#8b949e", "nvidia": "#e8863a", "openmps": "#56b4e9",
        "green": "#2fbf94", "yellow": "#f0e442", "sky": "#8fd0f5", "purple": "#d98cb8",
        "label-none": "#9da5ae", "label-nvidia": "#f0a060", "label-openmps": "#7cc7f2"}
FONT = "-apple-system,'Segoe UI','Noto Sans',Helvetica,Arial,'DejaVu Sans',sans-serif"

# Advances of DejaVu Sans, in hundredths of the size, from the space to the tilde. It is the widest
# of the fonts above: what fits in it fits in all of them.
ADVANCES = [
    32, 40, 46, 84, 64, 95, 78, 27, 39, 39, 50, 84, 32, 36, 32, 34, 64, 64, 64, 64, 64, 64, 64, 64,
    64, 64, 34, 34, 84, 84, 84, 53, 100, 68, 69, 70, 77, 63, 58, 77, 75, 29, 29, 66, 56, 86, 75, 79,
    60, 79, 69, 63, 61, 73, 68, 99, 69, 61, 69, 39, 34, 39, 84, 50, 50, 61, 63, 55, 63, 62, 35, 63,
    63, 28, 28, 58, 28, 97, 63, 61, 63, 63, 41, 52, 39, 63, 59, 82, 59, 59, 52, 64, 34, 64, 84]
WIDEST = 100
# A bold letter is so much wider, at most.
BOLD = 1.12
SIZE, SMALL = 13, 11


def text_width(text, size=SIZE, is_bold=False):
    """Pixels that a text takes at most."""
    hundredths = sum(ADVANCES[ord(sign) - 32] if " " <= sign <= "~" else WIDEST for sign in text)
    return hundredths / 100 * size * (BOLD if is_bold else 1)


def fitted(text, width, size=SIZE):
    """The text, or as much of its beginning as the width has room for, with an ellipsis."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "\u2026", size) > width:
        text = text[:-1]
    return text.rstrip() + "\u2026" if text else ""


def wrapped(text, width, size=SIZE):
    """The text in lines of at most this width."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_width(longer, size) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def number(value):
    """A coordinate: tenths of a pixel, never a negative zero."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def ticks(largest, most=5):
    """Round numbers from zero to the first that is not below `largest`: `most` steps or fewer."""
    for exponent in itertools.count(-12):
        for step in (1, 2, 5):
            # Read from text, so that three tenths are 0.3.
            steps = [float(f"{step * index}e{exponent}") for index in range(most + 1)]
            if steps[-1] >= largest:
                return steps[:1] + [step for step, before in zip(steps[1:], steps)
                                    if before < largest]


def style():
    """The style sheet."""
    def rules(colours):
        lines = []
        for name, colour in colours.items():
            lines.append(f".{name}{{fill:{colour}}}")
            if not name.startswith("label-"):
                lines.append(f".line-{name}{{stroke:{colour}}}")
        return "\n".join(lines)
    # Texts stand out from the lines that they cross.
    halo = "text{{paint-order:stroke;stroke-width:3;stroke-linejoin:round;stroke:{}}}"
    return "\n".join([
        f"text{{font-family:{FONT}}}", ".bold{font-weight:600}", "polyline,line{fill:none}",
        halo.format(LIGHT["paper"]), rules(LIGHT),
        "@media (prefers-color-scheme:dark){", halo.format(DARK["paper"]), rules(DARK), "}",
        "text.on-box{stroke:none}"])


class Picture:
    """A picture of this many pixels. `title` and `description` are for people who cannot see it.

    Classes are the names of `LIGHT`; texts have them for their colour, too."""

    def __init__(self, width, height, title, description):
        self.width, self.height = width, height
        size = f'width="{number(width)}" height="{number(height)}"'
        self.parts = [f"<title>{escape(title)}</title>", f"<desc>{escape(description)}</desc>",
                      f"<style>\n{style()}\n</style>", f'<rect class="paper" {size} rx="6"/>']

    def text(self, x, y, text, size=SIZE, anchor="start", colour="ink", is_bold=False,
             is_on_box=False):
        """`y` is that of the base line; `anchor` is start, middle or end."""
        classes = colour + " bold" * is_bold + " on-box" * is_on_box
        self.parts.append(f'<text class="{classes}" x="{number(x)}" y="{number(y)}" '
                          f'font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>')

    def line(self, x1, y1, x2, y2, colour="grid", width=1.0):
        self.parts.append(f'<line class="line-{colour}" x1="{number(x1)}" y1="{number(y1)}" '
                          f'x2="{number(x2)}" y2="{number(y2)}" stroke-width="{width:g}"/>')

    def path_through(self, points, colour, width=2.0, dashes=""):
        """A line through points; `dashes` as SVG has them."""
        places = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.parts.append(f'<polyline class="line-{colour}" points="{places}" '
                          f'stroke-width="{width:g}"{dashed}/>')

    def box(self, x, y, width, height, colour, told="", round_px=0):
        """A filled rectangle; `told` is shown where the mouse is over it."""
        rounded = f' rx="{round_px:g}"' if round_px else ""
        inside = f"><title>{escape(told)}</title></rect>" if told else "/>"
        self.parts.append(f'<rect class="{colour}" x="{number(x)}" y="{number(y)}" '
                          f'width="{number(width)}" height="{number(height)}"{rounded}{inside}')

    def mark(self, x, y, shape, colour):
        """What a line has at its points: a `circle`, a `square`, or a `diamond`."""
        if shape == "circle":
            place = f'cx="{number(x)}" cy="{number(y)}"'
            self.parts.append(f'<circle class="{colour}" {place} r="4"/>')
        elif shape == "square":
            self.box(x - 3.5, y - 3.5, 7, 7, colour)
        else:
            corners = [(0, -5), (5, 0), (0, 5), (-5, 0)]
            places = " ".join(f"{number(x + dx)},{number(y + dy)}" for dx, dy in corners)
            self.parts.append(f'<polygon class="{colour}" points="{places}"/>')

    def caption(self, y, lines):
        """Small lines at the left, from this base line on."""
        for index, line in enumerate(lines):
            self.text(MARGIN, y + index * CAPTION_LINE, line, SMALL, colour="soft")

    def svg(self):
        """The file's text."""
        width, height = number(self.width), number(self.height)
        opening = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                   f'viewBox="0 0 {width} {height}" role="img">')
        return "\n".join([opening, *self.parts, "</svg>", ""])


MARGIN = 16
CAPTION_LINE = 15
