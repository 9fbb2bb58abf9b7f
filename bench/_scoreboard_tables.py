"""The tables of a result of `bench/scoreboard.py`."""

from _record import table

SHOWN = 3  # names of failed checks for one cause
RANGES = ("small", "2^16", "2^20", "2^24", "int32")
IN_README = (
    *("rope_array, PyTorch", "transformers Llama", "Llama, complex form", "flash-attn, Triton kernel"),
)


def error(row, name):
    if name not in row["worst"]:
        return ""
    worst = row["worst"][name]  # None if a result was NaN or infinite
    return "no number" if worst is None else f"{worst:.0e}".replace("e-0", "e-").replace("e+00", "")


def counts_table(run):
    head = ("implementation", "angles", "passed", "failed", "n/a")
    return table(head, [(name, *counts(row)) for name, row in run["numbers"].items()], head[2:])


def counts(row):
    if "missing" in row:
        return f"not run: {row['missing']}", "", "", ""
    arithmetic = ", own" if row["class"]["arithmetic"] == "own" else ""
    return f"{row['class']['angles']}{arithmetic}", *map(str, row["counts"].values())


def errors_table(run):
    present = {name: row for name, row in run["numbers"].items() if "missing" not in row}
    head = ("implementation", "4,096", *RANGES[1:])
    return table(head, [(name, *(error(row, r) for r in RANGES)) for name, row in present.items()], head[1:])


def short_table(run):
    """Return the table of README.md and docs/index.md, and its caption."""
    head, rows = ("implementation", "angles", "failed", "2^16", "2^20", "int32"), run["numbers"]
    lines = []
    for name in IN_README:
        if "missing" in (row := rows.get(name, {"missing": True})):
            lines.append((name, "not run", *[""] * (len(head) - 2)))
        else:
            errors = (error(row, r) for r in head[3:])
            lines.append((name, row["class"]["angles"], str(row["counts"]["failed"]), *errors))
    return [
        *table(head, lines, head[2:]),
        "",
        "*Failed* counts checks; each implementation is judged by its own claims, so counts cannot be",
        "compared. The last columns have the largest error up to their position, divided by the pair's",
        "length; 2 is the opposite direction.",
    ]


def failures(run):
    """Yield a line for each cause: the implementations with their failed checks, and names of checks."""
    causes = {}
    for name, row in run["numbers"].items():
        for cause in row.get("reasons", ()):
            causes.setdefault(cause["reason"], {})[name] = cause["checks"]
    for reason, failed in causes.items():
        counts = "; ".join(f"{name} ({len(checks)})" for name, checks in failed.items())
        named = dict.fromkeys(
            f"`{check.partition('[')[0]}`" for checks in failed.values() for check in checks
        )
        shown, others = [*named][:SHOWN], len(named) - SHOWN
        yield f"* **{counts}:** {reason}. {', '.join(shown)}" + (
            f" and {others} more." if others > 0 else "."
        )


def calls_of(run):
    rows = {}  # by call: the names and versions
    for name, row in run["numbers"].items():
        if "how" in row:
            version = f" ({row['version']})" if "version" in row else ""
            rows.setdefault(row["how"], []).append(f"**{name}**{version}")
    for how, names in rows.items():
        yield f"* {', '.join(names)}: {how}."
