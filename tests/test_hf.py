"""Every rotary class of transformers: `RoPE.from_config` reads its config and rotates as the model does.

A class of a new version is compared as most classes are, until `hf/_text.py` or `hf/_vision.py` has its row,
and fails until the documentation has it. Each push compares one class of each row, `nightly` all.
"""

import re

import pytest
from hf import _float32, _random, _text, _vision, _walk
from hf._compare import needs_avx512
from hf._tiny_config import FAMILY, by_family

from rope_array import DynamicNTK

pytestmark = pytest.mark.filterwarnings("default")  # allow the warnings of transformers

CASES = _walk.cases()


def of(name, values, on_push, ids):
    """Parametrise a test; `on_push` says which values are tested on each push, the others in `nightly`."""
    marked = [value if on_push(value) else pytest.param(value, marks=pytest.mark.nightly) for value in values]
    return pytest.mark.parametrize(name, marked, ids=ids)


OF_EACH_CLASS = of("case", [c for c in CASES if c.probes], lambda case: case.on_push, lambda case: case.id)
OF_EACH_FORM = of("form", _random.FORMS, lambda form: form.first, lambda form: form.name)
OF_EACH_SEED = of("seed", range(4), lambda seed: seed == 0, str)


def test_every_class_has_one_case_and_a_row_in_the_documentation():
    classes, page = _walk.classes(), _walk.TABLE.read_text(encoding="utf-8")
    assert [(case.model, case.cls) for case in CASES] == sorted(classes)
    assert _text.ROWS.keys() <= {cls.removesuffix("RotaryEmbedding") for _, cls in classes}, "no such class"
    assert {*re.findall(r"`(\w+)` `(\w+)`", page)} == classes


@pytest.mark.nightly
def test_the_documentation_is_current():
    assert _walk.TABLE.read_text(encoding="utf-8") == _walk.table(), (
        "write it with PYTHONPATH=tests python -m hf._walk"
    )


def assert_equal(probes):
    probes = list(probes)
    assert probes
    wrong = [text for probe in probes for text in _walk.differences(probe)]
    assert not wrong, "\n".join(wrong)


@OF_EACH_CLASS
def test_a_class_is_equal(case):
    assert_equal(case.probes())


def test_a_model_without_a_rotary_class_is_equal():
    assert_equal(_vision.functions())


@OF_EACH_FORM
@OF_EACH_SEED
def test_random_configs_are_equal(form, seed):
    assert_equal(form.probes(seed))


# angles="float32"

OTHER_STEPS = by_family(FAMILY["other_steps"])


@needs_avx512
@OF_EACH_CLASS
def test_float32_angles_have_the_bits_of_a_class(case):
    """Compare the bits of the frequencies, and of cos and sin where the model has tables."""
    wrong = [text for probe in case.probes() for text in _walk.other_bits(probe)]
    if case.model not in OTHER_STEPS:
        assert not wrong, "\n".join([case.id, *wrong])
    elif "Vision" not in case.cls:
        assert wrong, "no other steps: not an exception"


@needs_avx512
@OF_EACH_FORM
@OF_EACH_SEED
def test_float32_angles_have_the_bits_of_random_configs(form, seed):
    """Not the bits of DynamicNTK: in widths below 64, PyTorch's power has other bits."""
    for probe in form.probes(seed):
        is_dynamic = isinstance(_walk.ours(probe).scaling, DynamicNTK)
        if not is_dynamic and probe.config.model_type not in OTHER_STEPS:
            assert not _walk.other_bits(probe), probe.equal_configs


@needs_avx512
def test_the_golden_frequencies_are_current():
    assert _float32.GOLDEN.read_text(encoding="utf-8") == _float32.golden(), (
        "write it with PYTHONPATH=tests python -m hf._float32"
    )
