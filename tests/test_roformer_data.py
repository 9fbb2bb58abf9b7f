"""The data of the study in bench/roformer/data, without the network: tiny files that each test writes."""

import io
import itertools
import sys
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from babel.messages import Catalog
from babel.messages.mofile import write_mo

sys.path.append(str(Path(__file__).parents[1] / "bench"))

from roformer.data import (
    batches,
    catalogues,
    lengths,
    packages,
    prepare,
    splits,
    tasks,
    text,
    tokens,
    wordnet,
)
from roformer.data.catalogues import Pair

pytestmark = pytest.mark.library("torch")

APT_GET = """#!/bin/sh
PATH=/usr/bin:/bin
echo "$@" >> {log}
case " $* " in *" absent "*) echo "E: Unable to locate package absent" >&2; exit 100 ;; esac
for word; do
  if [ "$downloads" ]; then echo "$word" > "${{word}}_1%3a2.0-1_all.deb"; fi
  if [ "$word" = download ]; then downloads=yes; fi
done
"""
DPKG_DEB = """#!/bin/sh
PATH=/usr/bin:/bin
mkdir -p "$3/usr" && cp "$2" "$3/usr/content"
"""
PIP = """#!/bin/sh
PATH=/usr/bin:/bin
echo pip >> {log}
cp {sdist} .
"""


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Put a fake apt-get, dpkg-deb and pip in place of the real tools; return the path of their log."""
    log = tmp_path / "log"
    log.touch()
    script = lambda name, body: _write_script(tmp_path / "bin" / name, body)  # noqa: E731
    script("apt-get", APT_GET.format(log=log)), script("dpkg-deb", DPKG_DEB)
    sdist = tmp_path / f"{packages.VADER}-{packages.VADER_VERSION}.tar.gz"
    monkeypatch.setattr(packages.sys, "executable", script("pip", PIP.format(log=log, sdist=sdist)))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv(packages.VARIABLE, raising=False)
    _write_tar(sdist, "inner.tar.gz", _tar_bytes("movies.txt", b"1\t2.5\tGood."))
    return log


def _write_script(path, body):
    path.parent.mkdir(exist_ok=True)
    path.write_text(body)
    path.chmod(0o755)
    return str(path)


def _tar_bytes(name, content):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def _write_tar(path, name, content):
    path.write_bytes(_tar_bytes(name, content))


def test_fetch_unpacks_each_package_and_records_its_version_and_hash(tools, tmp_path):
    folders = packages.fetch(("one", packages.VADER), tmp_path / "data")
    assert (folders["one"] / "usr" / "content").read_text() == "one\n"
    assert [path.name for path in folders[packages.VADER].rglob("*.txt")] == ["movies.txt"]
    one = next(each for each in packages.sources(tmp_path / "data") if each.package == "one")
    # printf 'one\n' | sha256sum
    assert one.sha256 == "2c8b08da5ce60398e1f19af0e5dccc744df274b826abe585eaba68c525434806"
    assert one.version == "1:2.0-1"


def test_a_second_fetch_downloads_nothing(tools, tmp_path):
    packages.fetch(("one", packages.VADER), tmp_path / "data")
    calls = tools.read_text()
    assert "download one" in calls
    assert "pip" in calls
    packages.fetch(("one", packages.VADER), tmp_path / "data")
    assert tools.read_text() == calls


def test_fetch_downloads_only_the_missing_package(tools, tmp_path):
    packages.fetch(("one",), tmp_path / "data")
    packages.fetch(("one", "two"), tmp_path / "data")
    assert tools.read_text().splitlines()[-1].endswith("download two")
    assert [each.package for each in packages.sources(tmp_path / "data")] == ["one", "two"]


def test_a_package_that_cannot_be_had_leaves_nothing_and_names_the_reason(tools, tmp_path):
    with pytest.raises(packages.FetchError, match="Unable to locate package absent"):
        packages.fetch(("one", "absent"), tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize("tool", ["apt-get", "dpkg-deb"])
def test_a_missing_tool_is_named_with_the_remedy(tool, tools, tmp_path):
    (tmp_path / "bin" / tool).unlink()
    with pytest.raises(packages.FetchError, match=f"{tool} is missing.*Debian.*{packages.VARIABLE}.*one"):
        packages.fetch(("one",), tmp_path / "data")


def test_a_folder_of_the_user_replaces_the_download(tools, tmp_path, monkeypatch):
    (tmp_path / "mine" / "one").mkdir(parents=True)
    monkeypatch.setenv(packages.VARIABLE, str(tmp_path / "mine"))
    assert packages.fetch(("one",), tmp_path / "data") == {"one": tmp_path / "mine" / "one"}
    with pytest.raises(packages.FetchError, match="lacks the folders two"):
        packages.fetch(("one", "two"), tmp_path / "data")
    assert tools.read_text() == ""


def _write_catalogue(folder, messages):
    catalogue = Catalog(locale="de", charset="utf-8")
    for english, german, context in messages:
        catalogue.add(english, german, context=context)
    path = folder / "usr" / "share" / "locale" / "de" / "LC_MESSAGES" / "x.mo"
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        write_mo(file, catalogue)


MESSAGES = [
    ("Re_draw  the\n image", "Bild\t_neu zeichnen", None),
    ("%d file", "%d Datei", None),
    (("%d byte", "%d bytes"), ("%d Byte ist frei", "%d Bytes sind frei"), None),
    ("Open", "Öffnen", "menu"),
    ("Open", "Öffnen", "dialog"),
    ("RGB", "RGB", None),
    ("unknown", "", None),
    ("--", "Strich", None),
    ("dash", "––", None),
    ("set CC_FOR_BUILD", "CC_FOR_BUILD setzen", None),
]


def test_catalogues_give_clean_translated_singulars_once(tmp_path):
    _write_catalogue(tmp_path, MESSAGES)
    assert set(catalogues.read_package(tmp_path, accelerators=True)) == {
        Pair("Redraw the image", "Bild neu zeichnen"),
        Pair("%d file", "%d Datei"),
        Pair("%d byte", "%d Byte ist frei"),
        Pair("Open", "Öffnen"),
        Pair("set CC_FOR_BUILD", "CC_FOR_BUILD setzen"),
    }
    assert len(catalogues.read_package(tmp_path)) == 5


def test_an_underscore_stays_where_it_marks_no_key(tmp_path):
    _write_catalogue(tmp_path, [("use_it", "nimm_es", None)])
    assert catalogues.read_package(tmp_path) == [Pair("use_it", "nimm_es")]


def _package_pairs():
    pairs = {name: [] for group in catalogues.PACKAGES.values() for name in group}
    pairs["coreutils"] = [Pair("No such file.", "Datei fehlt"), Pair("Write error", "Schreibfehler")]
    pairs["gettext"] = [
        Pair("Write  ERROR!", "Fehler"),
        Pair("Fuzzy", "Unscharf"),
        Pair("Invalid", "ungültig"),
    ]
    pairs["git"] = [
        Pair("no such FILE", "Keine Datei"),  # the English of the test
        Pair("file is missing", "datei fehlt!"),  # the German of the test
        Pair("blurred", "unscharf"),  # the German of validation
        Pair("commit", "einreichen"),
    ]
    return pairs


def test_no_text_of_validation_or_test_is_in_another_split():
    made = catalogues.split_packages(_package_pairs())
    assert made["train"] == [Pair("commit", "einreichen")]
    assert made["validation"] == [Pair("Fuzzy", "Unscharf"), Pair("Invalid", "ungültig")]
    assert made["test"] == _package_pairs()["coreutils"]


POD = """=encoding utf8

=head1 The C<print> function

Ordinary text in B<bold and I<nested>>,
with C<< $a->{b} <=> 1 >>, L<a link|perlop/"x">, L<perlre>, L<perlop/"Loops">, L<https://x.org/a>,
E<lt>E<gt>E<eacute>E<233>E<sol>, F<file>X<index entry>, and S<<-- HERE>.

    my $code = C<not prose>;

=over 4

=item * dropped

Text of an item.

=back

=begin html

<b>hidden</b>

=end html

=for comment hidden too

The end.

=cut
"""


def test_pod_becomes_prose():
    assert text.paragraphs(POD) == [
        "The print function",
        "Ordinary text in bold and nested, with $a->{b} <=> 1, a link, perlre, Loops in perlop, "
        "https://x.org/a, <>éé/, file, and <-- HERE.",
        "Text of an item.",
        "The end.",
    ]


def _write_manuals(folder, count=40, lines=20):
    shared = "Send reports of bugs to René. " * 3
    for i in range(count):
        own = "\n\n".join(f"Document {i} has the line number {j}." for j in range(lines + i))
        (folder / f"doc{i:02}.pod").write_text(f"=head1 Name {i}\n\n{shared}\n\n{own}\n")


def test_documents_share_no_paragraph_and_splits_no_document(tmp_path):
    _write_manuals(tmp_path)
    (tmp_path / "perltoc.pod").write_text("Contents. " * 200)
    documents = text.read_documents(tmp_path)
    assert set(documents) == {f"doc{i:02}" for i in range(40)}
    counts = Counter(each for parts in documents.values() for each in parts)
    assert max(counts.values()) == 1
    made = text.split_documents(documents)
    assert Counter(name for each in made.values() for name in each) == Counter(list(documents))
    size = lambda each: sum(len(part) for parts in each.values() for part in parts)  # noqa: E731
    largest = max(size({name: parts}) for name, parts in documents.items())
    for split in ("validation", "test"):
        assert abs(size(made[split]) - 0.1 * size(documents)) <= largest


def test_the_tokenizer_trains_to_the_same_vocabulary_and_restores_every_text(tmp_path):
    corpus = ["the cat sat on the mat", "the dog sat on the log", "größer als Übermut"] * 20
    merges = 20
    vocab_size = len(tokens.SPECIAL) + 256 + merges
    one, two = (tokens.Tokenizer.train(corpus, vocab_size) for _ in range(2))
    assert one.bpe.get_vocab() == two.bpe.get_vocab()
    assert one.vocab_size == vocab_size
    assert len(one.encode_all(["the cat"])[0]) < len("the cat")
    one.save(tmp_path / "t.json")
    loaded = tokens.Tokenizer.load(tmp_path / "t.json")
    lines = [*corpus, "漢字 🙂\n tab\t", "a [SEP] b"]
    encoded = loaded.encode_all(lines)
    assert encoded == one.encode_all(lines)
    assert [loaded.decode(ids) for ids in encoded] == lines
    assert min(map(min, encoded)) >= len(tokens.SPECIAL)
    assert [one.bpe.id_to_token(i) for i in range(5)] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def test_documents_are_delimited_by_offsets():
    tokenizer = tokens.Tokenizer.train(["some words"], 270)
    ids, offsets = tokens.encode_documents(tokenizer, ["words", "some more"])
    assert (ids.dtype, offsets.dtype, offsets[0], offsets[-1]) == (np.int32, np.int64, 0, len(ids))
    for i, document in enumerate(["words", "some more"]):
        part = ids[offsets[i] : offsets[i + 1]]
        assert part[-1] == tokens.SEP
        assert tokenizer.decode(part[:-1]) == document


LINE = (
    '00001740 18 n 02 able_seaman 0 "sailor" 1 003 @ 00000017 n 0000 + 00002098 a 0101 @ 00000018 n 0000 '
    '| a sailor; of rank; "the able seaman went"; "he was one"  \n'
)


def test_a_line_of_wordnet_is_parsed():
    synset = wordnet.parse(LINE)
    assert synset.part == "n"
    assert synset.category == 18
    assert synset.definition == "a sailor; of rank"
    assert synset.examples == ("the able seaman went", "he was one")


def _synsets(count=3000):
    """Return nouns and verbs."""
    rows = []
    for part in "nv":
        for i in range(count):
            examples = (f"the {part} of word number x{'abcdefghij'[i % 10]} goes {i} home today",)
            rows.append(wordnet.Synset(part, 3 + i % 26, f"{part} definition {i}", examples))
    return rows


def _texts(examples):
    return {splits.normalise(each) for each, _ in examples}


@pytest.mark.parametrize("make", [tasks.order, tasks.category])
def test_tasks_are_deterministic_and_share_no_text_between_splits(make):
    synsets = _synsets()
    task = make(synsets)
    assert task == make(synsets)
    for a, b in [("train", "validation"), ("train", "test"), ("validation", "test")]:
        assert task[a]
        assert task[b]
        assert not _texts(task[a]) & _texts(task[b])


def test_order_labels_are_right_and_balanced():
    synsets = _synsets()
    intact = {each for synset in synsets for each in synset.examples}
    sorted_words = Counter(tuple(sorted(each.split())) for each in intact)
    for examples in tasks.order(synsets).values():
        assert all((text in intact) == bool(label) for text, label in examples)
        used = Counter(tuple(sorted(text.split())) for text, _ in examples)
        assert not used - sorted_words  # the words of one sentence, and no sentence twice
        assert abs(sum(2 * label - 1 for _, label in examples)) <= 1


@pytest.mark.parametrize("sentence", ["one two three four", "The The Cat, Sat, On", "go go go go go"])
def test_a_sentence_without_another_order_is_not_shuffled(sentence):
    assert tasks.shuffle_words(sentence) is None


def test_a_shuffle_moves_plain_words_only():
    sentence = "The quick fox, jumps over it and Ann sleeps."
    words, shuffled = sentence.split(), tasks.shuffle_words(sentence).split()
    kept = [0, 2, 7, 8]  # with a capital, a comma or a full stop
    assert [shuffled[i] for i in kept] == [words[i] for i in kept]
    assert sorted(shuffled) == sorted(words)
    assert shuffled != words


def test_shuffles_draw_every_place():
    """Count where the first of five words goes: to each place in a fifth of the sentences."""
    firsts = ["x" * (i % 40 + 1) for i in range(2000)]
    shuffled = [tasks.shuffle_words(f"{word} b c d {'e' * (i + 1)}") for i, word in enumerate(firsts)]
    places = Counter(text.split().index(word) for word, text in zip(firsts, shuffled, strict=True) if text)
    assert all(400 - 80 < places[place] < 400 + 80 for place in range(5))  # 4 deviations are 72


def test_sentiment_has_the_sign_of_the_rating(tmp_path):
    rows = [(0.6, "fine film"), (-2.0, "bad film"), (0.49, "so so"), (0.7, "Fine film!"), (-0.5, "dull  one")]
    lines = "".join(f"{i}\t{rating}\t{each}\n" for i, (rating, each) in enumerate(rows))
    (tmp_path / "movieReviewSnippets_GroundTruth.txt").write_text(lines)
    examples = [each for split in tasks.sentiment(tmp_path).values() for each in split]
    assert sorted(examples) == [("Fine film!", 1), ("bad film", 0), ("dull one", 0)]


def test_equal_words_share_a_split_and_splits_have_their_shares():
    assert splits.split_of("Open the  file!") == splits.split_of("open, the file")
    shares = Counter(splits.split_of(f"text {i}") for i in range(10_000))
    assert shares["validation"] / 10_000 == pytest.approx(0.1, abs=0.015)  # 5 deviations of 0.003
    assert shares["test"] / 10_000 == pytest.approx(0.1, abs=0.015)


def _documents(sizes):
    """Return tokens and offsets of documents: token t of document i is 10000·i + t."""
    parts = [10_000 * i + np.arange(size, dtype=np.int32) for i, size in enumerate(sizes)]
    return np.concatenate(parts), np.cumsum([0, *sizes])


def test_excerpts_are_disjoint_parts_of_long_documents():
    excerpts, documents = lengths.cut(*_documents([25, 9, 19, 31]), length=10)
    expected = [(0, 0), (0, 10), (3, 0), (3, 10), (3, 20)]  # document, first token
    assert documents.tolist() == [i for i, _ in expected]
    for row, (i, start) in zip(excerpts, expected, strict=True):
        assert row.tolist() == [10_000 * i + start + t for t in range(10)]


def test_triples_have_two_excerpts_of_a_document_and_one_of_another():
    excerpts, documents = lengths.cut(*_documents([25, 40, 30]), length=10)
    triples = lengths.make_triples(excerpts, documents, 200)
    np.testing.assert_array_equal(triples, lengths.make_triples(excerpts, documents, 200))
    a, b, c = (triples // 10_000)[:, :, 0].T
    np.testing.assert_array_equal(a, b)
    assert (a != c).all()
    assert (triples[:, 0, 0] != triples[:, 1, 0]).all()


def test_the_baseline_compares_counts_of_the_prefix():
    triples = np.array(
        [[[1, 1, 2, 9], [2, 1, 1, 8], [3, 4, 5, 9]], [[1, 2, 7, 7], [4, 5, 7, 7], [2, 1, 6, 6]]]
    )
    assert lengths.bag_accuracy(triples, 2) == 0.5
    assert lengths.bag_accuracy(triples, 4) == 1.0


def test_batches_are_windows_that_depend_on_seed_and_step_alone():
    array = np.arange(1000, dtype=np.int32)
    one = batches.batches(array, 3, 7, 16, 50)
    batches.batches(array, 3, 8, 16, 50)
    np.testing.assert_array_equal(one, batches.batches(array, 3, 7, 16, 50))
    np.testing.assert_array_equal(one, one[:, :1] + np.arange(50))
    for seed, step in [(3, 8), (4, 7), (7, 3)]:
        assert (one != batches.batches(array, seed, step, 16, 50)).any()
    ends = batches.batches(np.arange(3), 0, 0, 100, 2)
    assert {tuple(row) for row in ends} == {(0, 1), (1, 2)}


def test_masks_have_the_shares_of_bert():
    vocab_size, size = 1000, 200_000
    original = np.random.default_rng(0).integers(0, vocab_size, (4, size // 4))
    masked, labels = batches.mask_tokens(original, 1, 2, vocab_size)
    chosen = labels != batches.IGNORED
    np.testing.assert_array_equal(labels[chosen], original[chosen])
    np.testing.assert_array_equal(masked[~chosen], original[~chosen])
    assert not chosen[original < 5].any()
    assert chosen[original >= 5].mean() == pytest.approx(0.15, abs=0.005)
    before, after = original[chosen], masked[chosen]
    assert (after == tokens.MASK).mean() == pytest.approx(0.8, abs=0.015)
    assert (after == before).mean() == pytest.approx(0.1, abs=0.015)
    assert after[after != tokens.MASK].min() >= 5
    again = batches.mask_tokens(original, 1, 2, vocab_size)
    np.testing.assert_array_equal(masked, again[0])
    assert (masked != batches.mask_tokens(original, 1, 3, vocab_size)[0]).any()


def test_contrastive_batches_pair_excerpts_of_different_documents():
    excerpts, documents = lengths.cut(*_documents([25, 40, 30, 20]), length=10)
    a, b = batches.contrastive(excerpts, documents, 5, 6, 3, 4)
    assert a.shape == b.shape == (3, 4)
    np.testing.assert_array_equal(a // 10_000, b // 10_000)
    assert len(set((a // 10_000)[:, 0])) == 3
    assert (a[:, 0] != b[:, 0]).all()
    np.testing.assert_array_equal(b, batches.contrastive(excerpts, documents, 5, 6, 3, 4)[1])


@pytest.fixture
def unpacked(tmp_path, monkeypatch):
    """Return a folder with a tiny counterpart of each package, which replaces the download."""
    folder = tmp_path / "unpacked"
    for name in packages.NAMES:
        (folder / name).mkdir(parents=True)
    _write_manuals(folder / "perl-doc", lines=300)
    for i, name in enumerate(name for group in catalogues.PACKAGES.values() for name in group):
        words = ["one", "two", "three", "four", "five and more words", "six"]
        _write_catalogue(folder / name, [(f"{name} {word}", f"{word} für {i}", None) for word in words])
    _write_wordnet(folder / "wordnet-base" / "usr" / "share" / "wordnet")
    rows = [f"{i}\t{(-1) ** i}\tfilm number {i}\n" for i in range(100)]
    (folder / packages.VADER / "movieReviewSnippets_GroundTruth.txt").write_text("".join(rows))
    monkeypatch.setenv(packages.VARIABLE, str(folder))
    return folder


def _write_wordnet(folder):
    folder.mkdir(parents=True)
    for name in wordnet.FILES:
        part = name[0]
        lines = [
            f"{i:08} 05 {part} 01 word 0 001 @ {i // 2:08} {part} 0000 | "
            f'{name} number {i}; "an example of a {name} is {i}"\n'
            for i in range(1, 500)
        ]
        root = f"{0:08} 05 {part} 01 word 0 000 | the root of each {name}\n"
        (folder / f"data.{name}").write_text("".join(["  1 The licence.\n", root, *lines]))


def test_prepare_builds_once_and_every_part_decodes_to_its_text(unpacked, tmp_path):
    told = []
    data = prepare(tmp_path / "data", told.append, 400, 400)
    assert told
    written = catalogues.read_splits({name: unpacked / name for name in packages.NAMES})
    for split in splits.SPLITS:
        for (source, target, *texts), pair in zip(data.pairs[split], written[split], strict=True):
            assert (data.pair_tokenizer.decode(source), data.pair_tokenizer.decode(target)) == pair
            assert tuple(texts) == pair
    made = tasks.make_tasks(unpacked / packages.VADER, wordnet.read_synsets(unpacked / "wordnet-base"))
    for name, task in made.items():
        for split, examples in task.items():
            assert [(data.tokenizer.decode(ids), label) for ids, label in data.tasks[name][split]] == examples

    again = prepare(tmp_path / "data", pytest.fail, 400, 400)
    assert again.tasks == data.tasks


def test_the_texts_of_prepare_are_the_manuals_and_the_triples_their_excerpts(unpacked, tmp_path):
    data = prepare(tmp_path / "data", None, 400, 400)
    manuals = {"\n".join(each) for each in text.read_documents(unpacked / "perl-doc").values()}
    documents = []
    for ids, offsets in data.text.values():
        parts = [data.tokenizer.decode(ids[a : b - 1]) for a, b in itertools.pairwise(offsets)]
        documents += parts
    assert sorted(documents) == sorted(manuals)
    for split in ("validation", "test"):
        assert data.triples[split].shape == (lengths.NUM_TRIPLES, 3, 1024)
        windows = {
            tuple(row[:50]) for row in np.lib.stride_tricks.sliding_window_view(data.text[split][0], 50)
        }
        assert {tuple(row[:50]) for row in data.triples[split].reshape(-1, 1024)} <= windows
    assert len(data.triples["train"]) == len(data.triples["documents"])


def test_short_pairs_have_at_most_the_tokens_of_the_limit(unpacked, tmp_path):
    data = prepare(tmp_path / "data", None, 400, 280)
    sizes = [max(len(pair[0]), len(pair[1])) for pair in data.pairs["train"]]
    limit = sorted(sizes)[len(sizes) // 2]
    kept = data.short_pairs("train", limit)
    assert 0 < len(kept) == sum(size <= limit for size in sizes) < len(sizes)
