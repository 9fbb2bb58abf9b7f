"""Print the report of a kill matrix, and its losses against another one, for tests/long/kill_matrix.py."""

from collections import Counter


def report(numbers, named):
    """Print the report; return whether it has no fault. `named` has the checks that must kill each mutant."""
    kills = numbers["mutants"]
    single = {name: killers[0] for name, killers in kills.items() if len(killers) == 1}
    victims = Counter(check for killers in kills.values() for check in killers)
    idle = {check: victims[check] for check in names_of_checks(numbers) if check not in single.values()}
    show("checks without a mutant that only they kill; mutants that they kill", idle)
    show("mutants that only one check kills", single)
    show("targets on which correct code fails checks: these are no killers", nonempty(numbers["correct"]))
    survived = {name: sorted({*named[name]}.difference(kills[name])) for name in named}
    faults = {
        "mutants that no check kills": {name: "" for name, killers in kills.items() if not killers},
        "mutants that survive a check which they name": nonempty(survived),
        "mutants that ran out of time; the check that ran": numbers["unfinished"],
    }
    for title, rows in faults.items():
        show(title, rows)
    return not any(faults.values())


def compare(old, new):
    """Print which names of checks are gone or new, and which mutants have fewer killers than before.

    Of mutants and targets that only one matrix has, nothing is printed.
    """
    targets = old["applied"].keys() & new["applied"].keys()
    before, after = names_of_checks(old, targets), names_of_checks(new, targets)
    show("names of checks that are gone", {name: "" for name in before if name not in after})
    show("names of checks that are new", {name: "" for name in after if name not in before})
    lost, fewer = {}, {}
    for name in (name for name in old["mutants"] if name in new["mutants"]):
        killers, left = old["mutants"][name], new["mutants"][name]
        if killers and not left:
            lost[name] = killers
        elif len(left) < len(killers):
            gone = [check for check in killers if check not in left]
            fewer[name] = [f"{len(killers)} -> {len(left)}, without {gone[0]}", *gone[1:]]
    show("mutants that lost all killers", lost)
    show("mutants with fewer killers", fewer)


def names_of_checks(numbers, targets=None):
    """Return the names of the checks that applied to some target, sorted."""
    applied = numbers["applied"]
    return sorted({check for target in targets or applied for check in applied[target]})


def nonempty(lists):
    return {name: names for name, names in lists.items() if names}


def show(title, rows):
    print(f"\n{len(rows)} {title}")
    for name, text in rows.items():
        print(f"  {name:<50}{', '.join(text) if isinstance(text, list) else text}".rstrip())
