"""Draws a comparison as horizontal bars in SVG, without a library."""

from __future__ import annotations

from xml.sax.saxutils import escape

from benchmarks.harness import Result, number_text

_WIDTH, _ROW, _LABEL, _VALUE, _TOP = 720, 26, 230, 70, 44
_OURS, _OTHERS = "#1f6f8b", "#b0b7bd"


def bar_chart(result: Result) -> str:
    """The medians of all contestants as bars, ours in colour, with a line from the lowest to the highest repeat."""
    most = max(max(values) for values in result.values.values()) or 1.0
    room = _WIDTH - _LABEL - _VALUE
    height = _TOP + _ROW * len(result.values) + 10
    frame = f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="13"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {frame}>',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="8" y="18" font-weight="bold">{escape(result.question)}</text>',
        f'<text x="8" y="35" fill="#555555">{escape(result.unit)}</text>',
    ]
    for number, (name, values) in enumerate(result.values.items()):
        middle = _TOP + _ROW * number + _ROW // 2
        width = room * result.median(name) / most
        low, high = (_LABEL + room * bound / most for bound in (min(values), max(values)))
        colour = _OURS if "leasehold" in name or "shards" in name else _OTHERS
        parts += [
            f'<text x="{_LABEL - 8}" y="{middle + 4}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{_LABEL}" y="{middle - 8}" width="{width:.1f}" height="16" fill="{colour}"/>',
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" stroke="#333333"/>',
            f'<text x="{max(high, _LABEL + width) + 6:.1f}" y="{middle + 4}">{number_text(result.median(name))}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"
