"""Draws docs/architecture.svg: the rooms of the house and the way of one request. Standard library only."""

from pathlib import Path

WIDTH, ROW, GAP = 960, 62, 16
LAYERS = [
    ("programs", "#f3f0ff", [("deepinfer run · chat", 2), ("score · generate · bench", 2), ("plan · doctor", 1), ("HTTP server (next)", 1)]),
    ("text", "#e7f5ff", [("service: one turn of text", 2), ("dialects: Chat · Responses · Messages", 2), ("text: tokenizer · prompt · parser", 2)]),
    ("engine", "#e6fcf5", [("runtime: engine thread · sampler", 2), ("sched: StepPlan", 1), ("cache: blocks · rings · fork · rollback", 2)]),
    ("model", "#fff9db", [("model: V4.1 · V4 config, checkpoint, forward graphs", 3), ("graph: operations · verifier · fusions · arena", 3)]),
    ("devices", "#fff0f6", [("backend/reference: the oracle", 2), ("backend/cpu: AVX2 · AVX-512 kernels", 2), ("cuda · ascend (planned)", 1)]),
    ("ground", "#f1f3f5", [("state: what a sequence carries", 2), ("tensor: formats · safetensors", 2), ("base: results · ledger · threads", 2)]),
]
CROSSINGS = ["messages, tools", "token ids", "StepPlan · StepInputs", "graph · weights", "records, rows"]


def main() -> None:
    height = len(LAYERS) * (ROW + GAP + 18) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="DejaVu Sans, Helvetica, Arial, sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#495057"/></marker></defs>',
    ]
    for index, (name, colour, boxes) in enumerate(LAYERS):
        top = 8 + index * (ROW + GAP + 18)
        parts.append(f'<rect x="8" y="{top}" width="{WIDTH - 16}" height="{ROW}" rx="8" fill="{colour}" stroke="#ced4da"/>')
        parts.append(f'<text x="20" y="{top + ROW / 2 + 4}" font-size="12" fill="#868e96">{name}</text>')
        left, total = 150, sum(share for _, share in boxes)
        usable = WIDTH - 16 - left - 8
        for text, share in boxes:
            width = usable * share / total - 8
            parts.append(f'<rect x="{left}" y="{top + 11}" width="{width:.0f}" height="{ROW - 22}" rx="6" fill="#ffffff" stroke="#868e96"/>')
            size = min(13.0, width / (0.60 * len(text)))
            parts.append(f'<text x="{left + width / 2:.0f}" y="{top + ROW / 2 + 4}" font-size="{size:.1f}" text-anchor="middle" fill="#212529">{text}</text>')
            left += usable * share / total
        if index + 1 < len(LAYERS):
            bottom = top + ROW
            parts.append(f'<line x1="{WIDTH / 2}" y1="{bottom + 2}" x2="{WIDTH / 2}" y2="{bottom + GAP + 14}" stroke="#495057" marker-end="url(#tip)"/>')
            parts.append(f'<text x="{WIDTH / 2 + 10}" y="{bottom + 22}" font-size="11" fill="#495057">{CROSSINGS[index]}</text>')
    parts.append("</svg>")
    target = Path(__file__).resolve().parent.parent / "docs" / "architecture.svg"
    target.write_text("\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
