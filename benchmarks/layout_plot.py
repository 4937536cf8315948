"""Predicted against measured step times, drawn."""

import math
from collections import defaultdict

from dtprof.plan.predict import Predictor
from dtprof.report import svg

SIZE, LEFT, BOTTOM, TOP, LEGEND = 520.0, 64.0, 48.0, 14.0, 230.0
# colours that stay apart without hue: light and dark alternate, shapes differ too
PAINTS = (
    "#1A75B5",
    "#E37A22",
    "#6B2E77",
    "#2BBCCB",
    "#966A63",
    "#5A6573",
    "#B59A00",
    "#155E93",
    "#A34A06",
    "#3C8D5A",
    "#C2478A",
)
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1B222C}.m{fill:#5A6573}.hair{stroke:#DFE3E8}.ax{stroke:#5A6573}"
    ".lead{stroke:#5A6573;stroke-dasharray:4 4}"
)
BAND = 1.2


def plot(path, cases):
    """Write the figure: both axes logarithmic, a diagonal where prediction and measurement agree, and 20% beside it."""
    predictor, series = Predictor(), defaultdict(list)
    for case in cases:
        if case.plan and case.seconds:
            series[case.table].append((case.seconds, predictor.estimate(case.plan)[1], case.row["model"]))
    values = [value for points in series.values() for measured, predicted, _ in points for value in (measured, predicted)]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    right, bottom = LEFT + SIZE, TOP + SIZE

    def x(seconds):
        return LEFT + (math.log10(seconds) - low) / (high - low) * SIZE

    def y(seconds):
        return bottom - (math.log10(seconds) - low) / (high - low) * SIZE

    body = [f"<style>{STYLE}</style>", f'<rect width="{right + LEGEND:g}" height="{bottom + BOTTOM:g}" fill="#FFFFFF"/>']
    for decade in range(low, high + 1):
        value = 10.0**decade
        body += [svg.line(x(value), TOP, x(value), bottom, "hair"), svg.line(LEFT, y(value), right, y(value), "hair")]
        words = f"{value:g} s"
        body += [svg.text(x(value), bottom + 18, words, "m", "middle"), svg.text(LEFT - 8, y(value) + 4, words, "m", "end")]
    ends = 10.0**low, 10.0**high
    body.append(svg.line(x(ends[0]), y(ends[0]), x(ends[1]), y(ends[1]), "ax"))
    body.append(svg.line(x(ends[0]), y(ends[0] * BAND), x(ends[1] / BAND), y(ends[1]), "lead"))
    body.append(svg.line(x(ends[0] * BAND), y(ends[0]), x(ends[1]), y(ends[1] / BAND), "lead"))
    for place, (name, points) in enumerate(sorted(series.items())):
        paint = PAINTS[place % len(PAINTS)]
        for measured, predicted, model in points:
            body.append(mark(place, x(measured), y(predicted), paint, f"{name}, {model}"))
        line = TOP + 16 + 20 * place
        body += [mark(place, right + 20, line - 4, paint, name), svg.text(right + 32, line, f"{name} ({len(points)})")]
    body.append(svg.text((LEFT + right) / 2, bottom + 38, "measured step", "m", "middle"))
    body.append(svg.text(LEFT + 8, TOP + 14, "predicted step", "m"))
    label = f"Predicted against measured step times of {sum(map(len, series.values()))} published configurations"
    figure = svg.figure(right + LEGEND, bottom + BOTTOM, label, body)
    path.write_text(figure.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n", encoding="utf-8")


def mark(place, x, y, paint, title):
    """A circle, a square or a triangle, by turns."""
    told = f"<title>{svg.escape(title)}</title>"
    if place % 3 == 1:
        return svg.rect(x - 2.6, y - 2.6, 5.2, 5.2, paint, title, ' fill-opacity="0.7"')
    if place % 3 == 2:
        corners = f"{x:.1f},{y - 3.4:.1f} {x - 3.2:.1f},{y + 2.6:.1f} {x + 3.2:.1f},{y + 2.6:.1f}"
        return f'<polygon points="{corners}" fill="{paint}" fill-opacity="0.7">{told}</polygon>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.8" fill="{paint}" fill-opacity="0.7">{told}</circle>'
