#!/usr/bin/env python3
"""Draws rows of `deepinfer bench cuda-nodes --json` as a roofline: multiply-adds a byte against multiply-adds a second.

usage: draw_roofline.py ROWS.json STEP TITLE >PICTURE.svg
  STEP   which step of the rows: "V4.1 1x1" (sequences x tokens)
A point's area is its share of the step's time.
"""
import json
import math
import sys
from html import escape

WIDTH, HEIGHT = 1180, 620
LEFT, RIGHT, TOP, BOTTOM = 80, 510, 60, 60
SMALLEST_SHARE = 0.004  # of the step's time: below it a point says nothing
COLOURS = ["#2563a8", "#b3501f", "#2e7d4f", "#7a4ea3", "#b08900", "#c2385a", "#3a8f96", "#6b6b6b", "#8c5a3c", "#4d6fd1"]


def points_of(rows, step):
    points = []
    for row in rows:
        if not row["name"].startswith(step + " ") or not row.get("seconds") or not row["multiplies"]:
            continue
        points.append({"name": row["name"][len(step) + 1:], "seconds": row["seconds"], "percent": row["percent"],
                       "x": row["multiplies"] / row["bytes"], "y": row["multiplies"] / row["seconds"]})
    total = sum(row["seconds"] for row in rows if row["name"].startswith(step + " ") and row.get("seconds"))
    if not points:
        raise SystemExit(f"no row of '{step}' has work: are these rows of bench cuda-nodes?")
    kept = [point | {"share": point["seconds"] / total} for point in points if point["seconds"] > SMALLEST_SHARE * total]
    return sorted(kept, key=lambda point: -point["share"])


def roofs_of(rows):
    read = max(row["limit"] for row in rows if row["unit"] == "GB/s") * 1e9
    multiply = max((row["limit"] for row in rows if row["unit"] == "T multiply-adds/s"), default=395.0) * 1e12
    return read, multiply


def draw(points, roofs, title):
    read, multiply = roofs
    x_low = min(-2, math.floor(math.log10(min(point["x"] for point in points))))
    x_high = max(4, math.ceil(math.log10(max(point["x"] for point in points))))
    y_high = math.ceil(math.log10(multiply)) + 0.1
    y_low = math.floor(min(math.log10(min(point["y"] for point in points)), math.log10(multiply) - 4))

    def x_of(value):
        return LEFT + (math.log10(value) - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def y_of(value):
        return HEIGHT - BOTTOM - (math.log10(value) - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="28" font-size="17">{escape(title)}</text>']
    for power in range(x_low, x_high + 1):
        x = x_of(10.0 ** power)
        out.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#e4e4e4"/>')
        out.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{10.0 ** power:g}</text>')
    for power in range(y_low, math.floor(y_high) + 1):
        y = y_of(10.0 ** power)
        out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e4e4e4"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0 ** (power - 12):g}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 16}" text-anchor="middle">multiply-adds a byte</text>')
    out.append(f'<text transform="translate(24 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
               "T multiply-adds a second</text>")
    ridge = multiply / read
    start = max(10.0 ** x_low, 10.0 ** y_low / read)
    out.append(f'<polyline fill="none" stroke="black" stroke-width="1.6" points="{x_of(start):.1f},{y_of(start * read):.1f} '
               f'{x_of(ridge):.1f},{y_of(multiply):.1f} {x_of(10.0 ** x_high):.1f},{y_of(multiply):.1f}"/>')
    out.append(f'<text x="{x_of(10.0 ** x_high) - 6:.1f}" y="{y_of(multiply) - 7:.1f}" text-anchor="end">'
               f"{multiply / 1e12:.0f} T multiply-adds/s, {read / 1e12:.2f} TB/s</text>")
    for index, point in enumerate(points):
        colour = COLOURS[index % len(COLOURS)]
        radius = 3 + 34 * math.sqrt(point["share"])
        out.append(f'<circle cx="{x_of(point["x"]):.1f}" cy="{y_of(point["y"]):.1f}" r="{radius:.1f}" fill="{colour}" '
                   'fill-opacity="0.55"/>')
        out.append(f'<text x="{x_of(point["x"]):.1f}" y="{y_of(point["y"]) + 4:.1f}" text-anchor="middle" '
                   f'font-size="10">{index + 1}</text>')
        y = TOP + 8 + 21 * index
        if y > HEIGHT - 20:
            continue
        name = point["name"] if len(point["name"]) < 46 else point["name"][:44] + "…"
        out.append(f'<circle cx="{WIDTH - RIGHT + 30}" cy="{y - 4}" r="6" fill="{colour}" fill-opacity="0.7"/>')
        out.append(f'<text x="{WIDTH - RIGHT + 42}" y="{y}" font-size="10.5">{index + 1} {escape(name)}: '
                   f'{100 * point["share"]:.0f} % of time, {point["percent"]:.0f} % of roof</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main():
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        rows = json.load(file)
    sys.stdout.write(draw(points_of(rows, sys.argv[2]), roofs_of(rows), sys.argv[3]))


if __name__ == "__main__":
    main()
