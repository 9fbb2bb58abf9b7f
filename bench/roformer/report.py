"""The page of the study: tables and sentences of the results, between markers of docs/roformer.md.

This module writes all results on the page; the text around them has no decimal but the paper's. Tests hold
the page to the committed results, and the counts of pairs and of sentence tasks in its text to the data.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from _record import RESULTS, ROOT, table

from . import figures, pictures
from .experiments import translation
from .results import Results
from .statistics import Verdict, summarise, verdict, verdicts

PAGE = ROOT / "docs" / "roformer.md"
PICTURES = ROOT / "docs" / "pictures" / "roformer"
PAPER = json.loads((Path(__file__).parent / "paper.json").read_text("utf-8"))
BLOCK = re.compile(r"(<!-- roformer: ([\w-]+) -->\n).*?(<!-- /roformer -->)", re.DOTALL)
TASKS = {"sentiment": "sentiment", "order": "word order", "category": "category"}


# ---- parts of sentences and cells ----


def interval(values: Sequence[float], digits: int, scale: float = 1.0) -> str:
    """Return the mean and the half-width of its 95 % interval, such as 4.04 ± 0.02; – without values."""
    if not values or None in values:
        return "–"
    summary = summarise([scale * value for value in values])
    if summary.high == summary.low or summary.high != summary.high:
        return f"{summary.mean:.{digits}f}"
    return f"{summary.mean:.{digits}f} ± {summary.high - summary.mean:.{digits}f}"


def p_value(verdict: Verdict) -> str:
    return f"p = {verdict.p:.2g}" if verdict.p >= 0.001 else "p < 0.001"


def against(by_arm: dict[str, Verdict], arm: str) -> str:
    """Return the cell that compares RoPE with an arm, from the verdicts of RoPE against each."""
    if arm not in by_arm:
        return ""
    better = by_arm[arm].better
    word = "not told apart" if better is None else "better" if better else "worse"
    return f"{word}, {p_value(by_arm[arm])}"


def names(arms: Iterable[str], word: str) -> str:
    """Return names as a list of words: a, b and c."""
    *first, last = arms
    return f"{', '.join(first)} {word} {last}" if first else last


def groups(by_arm: dict[str, Verdict], measure: str) -> list[str]:
    """Return a sentence for the arms that RoPE is better than, worse than, and cannot be told from.

    More than four that it cannot be told from are counted.
    """
    texts = {
        True: f"RoPE has a better {measure} than {{}}.",
        False: f"RoPE has a worse {measure} than {{}}.",
        None: f"RoPE cannot be told apart from {{}} by {measure}.",
    }
    arms = {better: [arm for arm, verdict in by_arm.items() if verdict.better is better] for better in texts}
    if len(arms[None]) > 4:
        arms[None] = [f"the other {len(arms[None])}"]
    last = {True: "and", False: "and", None: "or"}
    return [texts[better].format(names(named, last[better])) for better, named in arms.items() if named]


# ---- the blocks ----


def origin(results: Results) -> list[str]:
    record, machine = results.record, results.record["machine"]
    by_arm = (seeds for arms in record["seconds"].values() for seeds in arms.values())
    minutes = sum(seconds for seeds in by_arm for seconds in seeds.values()) / 60
    versions = f"Python {record['versions']['python']}, PyTorch {record['versions']['torch']}"
    older = len(record["of_other_origin"])
    commit = record["commit"] or "none"
    return [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system'].split()[0]}; {versions}; "
        f"{record['date']}, commit {commit[:10]}{'+' * commit.endswith('+')}. {results.num_seeds} seeds."
        + (
            f" {older} of all jobs ran with other code, packages or data than this commit's." if older else ""
        ),
        f"All jobs took {minutes / machine['cores']:.0f} minutes of each of {machine['cores']} cores.",
    ]


def translation_block(results: Results) -> list[str]:
    rows = [
        (arm, *(interval(results.values("translation", arm, score), 2) for score in ("bleu", "chrf")), paper)
        for arm, paper in zip(translation.ARMS, PAPER["tables"]["1"]["rows"].values(), strict=True)
    ]
    comparison = verdict(
        results.values("translation", "rope", "bleu"),
        results.values("translation", "sinusoidal", "bleu"),
        smaller_is_better=False,
        names=("The BLEU of rope", "the BLEU of sinusoidal"),
    )
    head = ("positions", "BLEU", "chrF", "paper, BLEU")
    return [*table(head, [tuple(map(str, row)) for row in rows], head[1:]), "", f"{comparison.text}."]


def masked_block(results: Results) -> list[str]:
    losses = results.by_arm("masked", "test", "loss")
    orders = results.by_arm("sentences", "order", "accuracy")
    by_arm = verdicts(losses, "rope", smaller_is_better=True)
    rows = [
        (
            arm,
            interval(losses[arm], 3),
            against(by_arm, arm),
            interval(orders[arm], 1, 100) if arm in orders else "",
        )
        for arm in losses
    ]
    head = ("encoding", "loss", "RoPE against it, by loss", "word order, %")
    return table(head, rows, (head[1], head[3]))


def sentences_block(results: Results) -> list[str]:
    lines = []
    for task, label in TASKS.items():
        accuracies = results.by_arm("sentences", task, "accuracy")
        means = [100 * summarise(values).mean for values in accuracies.values()]
        judged = " ".join(groups(verdicts(accuracies, "rope", smaller_is_better=False), "accuracy"))
        lines.append(f"* **{label}:** means from {min(means):.1f} to {max(means):.1f} %. {judged}")
    return lines


def linear_block(results: Results) -> list[str]:
    losses = results.by_arm("linear", "test", "loss")
    lines = [
        *table(("attention", "loss"), [(arm, interval(losses[arm], 3)) for arm in losses], ("loss",)),
        "",
    ]
    for plain, rotated in (("linear", "linear-rope"), ("performer", "performer-rope")):
        comparison = verdict(
            losses[rotated], losses[plain], True, (f"The loss of {rotated}", f"the loss of {plain}")
        )
        lines += ["", f"{comparison.text}."]
    return lines


def stages_block(results: Results) -> list[str]:
    head = ("stage", "length", "steps", "loss", "paper: loss")
    rows = []
    for number, paper in enumerate(PAPER["tables"]["4"]["rows"].values()):
        first = results.values("stages", "rope", "stages", number)[0]
        loss = interval(results.values("stages", "rope", "stages", number, "loss"), 3)
        rows.append((number + 1, first["length"], first["steps"], loss, paper["loss"]))
    return table(head, [tuple(map(str, row)) for row in rows], head)


def long_block(results: Results) -> list[str]:
    arms, trained = results.arms("long"), results.settings("long")["length"]
    at = (trained, results.settings("long")["lengths"][-1])  # the figure has all lengths
    head = ("encoder", *(f"{length:,} tokens" for length in at))
    by_length = {length: results.by_arm("long", "accuracy", str(length)) for length in at}
    rows = [(arm, *(interval(by_length[length].get(arm), 1, 100) for length in at)) for arm in arms]
    lines = [*table(head, rows, head[1:]), ""]
    longest, rope = at[-1], "rope"
    comparison = verdict(
        *([100 * value for value in by_length[length][rope]] for length in (longest, trained)),
        False,
        (f"The accuracy of rope at {longest:,} tokens", f"at {trained:,} tokens"),
        unit=" percentage points",
    )
    lines += ["", f"{comparison.text}.", "", f"At {longest:,} tokens:"]
    return [*lines, *groups(verdicts(by_length[longest], rope, False), "accuracy")]


def lengths_block(results: Results) -> list[str]:
    longest = results.lengths()[-1]
    by_arm = verdicts(results.by_arm("lengths", "loss", str(longest)), "rope", smaller_is_better=True)
    return [f"At {longest:,} tokens:", *groups(by_arm, "loss")]


BLOCKS: dict[str, Callable[[Results], list[str]]] = {
    "origin": origin,
    "translation": translation_block,
    "masked": masked_block,
    "sentences": sentences_block,
    "linear": linear_block,
    "stages": stages_block,
    "long": long_block,
    "lengths": lengths_block,
}


def fill(page: str, record: dict) -> str:
    """Return the page with every block of results written anew."""
    results = Results(record)
    return BLOCK.sub(lambda match: "\n".join([match[1], *BLOCKS[match[2]](results), "", match[3]]), page)


def write(record: dict, out: Path, quick: bool) -> None:
    """Write page and figures: of a full run into docs and bench/results, of a quick one into `out`."""
    page, folder = (out / "roformer.md", out / "pictures") if quick else (PAGE, PICTURES)
    text = fill(PAGE.read_text("utf-8"), record)
    folder.mkdir(parents=True, exist_ok=True)
    figures.draw_mathematics(folder)
    pictures.draw(Results(record), folder)
    page.write_text(text, "utf-8")
    if not quick:
        path = RESULTS / f"{record['date']}-roformer.json"
        path.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def newest() -> dict:
    """Return the newest committed results."""
    return json.loads(max(RESULTS.glob("*-roformer.json")).read_text("utf-8"))
