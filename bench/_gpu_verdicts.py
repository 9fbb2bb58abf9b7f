"""The targets on a GPU, and whether the numbers of `bench/gpu.py` meet them."""

from itertools import product

from _gpu_cases import BACKWARD, DTYPES, FORWARD, OURS, PAIRINGS, ROTATION

MET, MISSED, OPEN = "met", "missed", "not measured"
LARGE = 64e6  # bytes read and written
COPIES, EXACT = 1.1, 1.01  # limits of ratios
SHARED_HEADS = 32
KERNELS = ("flash-attn, Triton kernel", "Liger, Triton kernel")


def verdicts(numbers):
    """Return the verdict on each target, as a dictionary: target, verdict, limit, worst, case, cases."""
    return [
        *(copies(numbers, *each) for each in product((FORWARD, BACKWARD), DTYPES, PAIRINGS)),
        *(not_slower(numbers, kernel) for kernel in KERNELS),
        one_launch(numbers),
        exact(numbers),
    ]


def copies(numbers, direction, dtype, pairing):
    target = f"at most {COPIES} of a device copy from 64 MB on: {direction}, {dtype}, {pairing}"
    wanted = {"direction": direction, "dtype": dtype, "pairing": pairing}
    found = {
        name: row["copies"][1]
        for name, case, row in large(numbers)
        if wanted.items() <= case.items() and "copies" in row
    }
    return verdict(target, found, COPIES)


def not_slower(numbers, kernel):
    """Compare with a kernel: slower means a ratio above 1 in three of four rounds."""
    target = f"never slower than {kernel.partition(',')[0]}'s kernel on the same tensors"
    ratios = {name: row["against"][kernel] for name, _, row in ours(numbers) if kernel in row["against"]}
    slower = [name for name, (lower, _, _) in ratios.items() if lower > 1]
    result = verdict(target, {name: ratio[1] for name, ratio in ratios.items()}, 1)
    return result | ({"verdict": MISSED if slower else MET, "slower in": slower} if ratios else {})


def one_launch(numbers):
    found = {
        name: row["launches"]
        for name, case, row in ours(numbers)
        if len(case["heads"]) == 2 and case["direction"] in (FORWARD, BACKWARD) and row["launches"]
    }
    return verdict("one launch for q and k, forward and backward", found, 1)


def exact(numbers):
    target = f"exact angles within 1 % of tables (Rotation) at {SHARED_HEADS} heads, from 64 MB on"
    found = {
        name: row["against"][ROTATION][1]
        for name, case, row in large(numbers)
        if max(case["heads"]) == SHARED_HEADS and ROTATION in row["against"]
    }
    return verdict(target, found, EXACT)


def ours(numbers):
    """Yield name, case and our row of each case that has one with times."""
    for name, case in numbers.items():
        row = case["rows"].get(OURS, {})
        if "seconds" in row:
            yield name, case, row


def large(numbers):
    return ((name, case, row) for name, case, row in ours(numbers) if 2 * case["bytes"] >= LARGE)


def verdict(target, found, limit):
    """Judge the worst of the found values by a limit."""
    if not found:
        return {"target": target, "verdict": OPEN, "limit": limit, "cases": 0}
    name = max(found, key=found.get)
    kind = MET if found[name] <= limit else MISSED
    worst = {"worst": found[name], "case": name, "cases": len(found)}
    return {"target": target, "verdict": kind, "limit": limit, **worst}


def line(each):
    """Return a verdict as a line of text."""
    if each["verdict"] == OPEN:
        return f"{OPEN:<12} {each['target']}"
    worst = f"worst {each['worst']:.4g} of {each['cases']} cases ({each['case']})"
    slower = f"; slower in {len(each['slower in'])}" if each.get("slower in") else ""
    return f"{each['verdict']:<12} {each['target']}: {worst}{slower}"
