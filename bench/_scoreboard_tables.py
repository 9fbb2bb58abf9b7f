"""The tables of a result of `bench/scoreboard.py`."""

from _record import table

MANY = 8  # with more failed checks for one reason, dtypes are left out
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
    head = ("implementation", "angles", "passed", "failed", "not applicable")
    return table(head, [(name, *counts(row)) for name, row in run["numbers"].items()], head[2:])


def counts(row):
    if "missing" in row:
        return f"not run: {row['missing']}", "", "", ""
    arithmetic = ", own arithmetic" if row["class"]["arithmetic"] == "own" else ""
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


def grouped_names(names):
    """Join the names of checks, each once, with its failed dtypes: a, b (float16, bfloat16)."""
    dtypes = {}
    for name in names:
        check, _, dtype = name.rstrip("]").partition("[")
        dtypes.setdefault(check, []).append(dtype)
    brief = len(dtypes) > MANY
    return ", ".join(
        f"`{check}`" + (f" ({', '.join(dtype_names)})" if all(dtype_names) and not brief else "")
        for check, dtype_names in dtypes.items()
    )


def failures(run):
    for name, row in run["numbers"].items():
        if row.get("reasons"):
            yield f"\n### {name}\n"
        for reason_of_checks in row.get("reasons", ()):
            reason = reason_of_checks["reason"].replace("|", "\\|")
            yield f"* {grouped_names(reason_of_checks['checks'])}: {reason}."


def calls_of(run):
    for name, row in run["numbers"].items():
        if "how" in row:
            version = f" ({row['version']})" if "version" in row else ""
            yield f"* **{name}**{version}: {row['how']}."
