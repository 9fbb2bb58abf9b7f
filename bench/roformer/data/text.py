"""Prose of Perl's manual: paragraphs of POD (see perlpodspec), one document a file.

Code is left out: verbatim paragraphs are indented. Of directives the headings remain.
"""

import html
import re
from pathlib import Path

from .splits import SHARE, fraction

# perltoc repeats the headings of all documents, perluniprops is a table, the others are not in English.
EXCLUDED = {"perltoc", "perluniprops", "perlcn", "perljp", "perlko", "perltw"}
MIN_WORDS = 100  # shorter documents only name another
OPEN = r"(?P<code>[A-Z])(?P<open><<+(?=\s)|<)"


def read_documents(folder: Path) -> dict[str, list[str]]:
    """Return the paragraphs of each document by name, each paragraph only where it occurs first.

    Manuals of releases share paragraphs, such as the address for reports of bugs: without the rule, text of
    the training documents would be in the test documents too.
    """
    old, documents = set(), {}
    for path in sorted(folder.rglob("*.pod")):
        if path.stem in EXCLUDED:
            continue
        new = [
            text for text in dict.fromkeys(paragraphs(path.read_text("utf-8", "replace"))) if text not in old
        ]
        old.update(new)
        if sum(len(text.split()) for text in new) >= MIN_WORDS:
            documents[path.stem] = new
    return documents


def split_documents(documents: dict[str, list[str]]) -> dict[str, dict[str, list[str]]]:
    """Return documents by split, in an order by hash. Validation and test have SHARE of the text each."""
    sizes = {name: sum(map(len, paragraphs)) for name, paragraphs in documents.items()}
    quota = SHARE * sum(sizes.values())
    splits: dict[str, dict[str, list[str]]] = {"train": {}, "validation": {}, "test": {}}
    before = 0
    for name in sorted(documents, key=fraction):
        split = "validation" if before < quota else "test" if before < 2 * quota else "train"
        splits[split][name] = documents[name]
        before += sizes[name]
    return splits


def paragraphs(pod: str) -> list[str]:
    """Return the prose of a POD text: one line for each heading and ordinary paragraph."""
    texts, skipping = [], False
    for block in re.split(r"\n(?:[ \t]*\n)+", pod.strip("\n")):
        directive = re.match(r"=([a-z]+)\d?[ \t]*", block)
        if directive and directive[1] in ("begin", "end"):
            skipping = directive[1] == "begin"
        elif not skipping and (text := _prose(block, directive)):
            texts.append(text)
    return texts


def _prose(block: str, directive: re.Match | None) -> str:
    """Return the text of a heading or of an ordinary paragraph; "" for other blocks."""
    if directive and directive[1] != "head":
        return ""
    if block[:1].isspace():
        return ""
    return " ".join(plain(block[directive.end() if directive else 0 :]).split())


def plain(text: str) -> str:
    """Return text with its formatting codes resolved, such as C<...>, L<...> and E<lt>."""
    return _resolve(text, 0, None)[0]


def _resolve(text: str, start: int, close: str | None) -> tuple[str, int]:
    """Return the plain text from start to a closing bracket, and the position after the bracket."""
    pattern = re.compile(f"{OPEN}|(?P<close>{close})" if close else OPEN)
    texts = []
    while match := pattern.search(text, start):
        texts.append(text[start : match.start()])
        if not match["code"]:
            return "".join(texts), match.end()
        width = len(match["open"])
        inner, start = _resolve(text, match.end(), ">" if width == 1 else rf"\s+>{{{width}}}")
        texts.append(_show(match["code"], inner.strip() if width > 1 else inner))
    return "".join(texts) + text[start:], len(text)


def _show(code: str, inner: str) -> str:
    """Return the text that a reader sees for a code, as perldoc shows it."""
    if code == "E":
        names = {"sol": "/", "verbar": "|", "lchevron": "«", "rchevron": "»"}
        return names.get(inner) or html.unescape(f"&#{inner};" if inner.isdigit() else f"&{inner};")
    if code in "XZ":
        return ""
    return _link(inner) if code == "L" else inner


def _link(target: str) -> str:
    """Return the text of L<text|name>, or of L<name/section> in words."""
    label, bar, _ = target.partition("|")
    page, slash, section = target.partition("/")
    if bar or not slash or "://" in target:
        return label
    section = section.strip('"')
    return f"{section} in {page}" if page else section
