"""Every rotary class of transformers: `RoPE.from_config` reads its config and rotates as the model does.

Collected only with `--models`, as it needs transformers and PyTorch. The test walks the package, so that a
class of a new version fails until `hf/_text.py` or `hf/_vision.py` has its case.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from hf import _float32, _random, _vision, _walk
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from rope_array import RoPE
from rope_array._errors import SpecError

transformers.logging.set_verbosity_error()
pytestmark = pytest.mark.filterwarnings("default")  # allow the warnings of transformers

CASES = _walk.cases()
torch.set_num_threads(1)


def test_every_class_has_one_case():
    found, failed = _walk.classes()
    count = Counter((case.model, case.cls) for case in CASES)
    assert sorted(found - count.keys()) == [], "a class of transformers without a case"
    assert sorted(count.keys() - found) == [], "a case without a class"
    assert [name for name, times in count.items() if times > 1] == []
    # An audio codec that needs torchaudio, and has no rotary class.
    assert set(failed) <= {"transformers.models.higgs_audio_v2_tokenizer.modeling_higgs_audio_v2_tokenizer"}


def test_a_case_has_probes_or_a_reason():
    for case in CASES:
        assert case.probes or case.status != _walk.EQUAL, case.id


@pytest.mark.parametrize("case", [c for c in CASES if c.probes], ids=lambda case: case.id)
def test_a_class_is_equal(case):
    probes = list(case.probes())
    assert probes
    wrong = [
        f"{form}, part {probe.part}, layer {probe.layer_type}: {text}"
        for probe in probes
        for form in _walk.FORMS
        for text in _walk.differences(probe, form)
    ]
    assert not wrong, "\n".join([case.id, *wrong])


@pytest.mark.parametrize("case", [c for c in CASES if c.refused], ids=lambda case: case.id)
def test_a_config_without_a_rotation_is_refused(case):
    for config, part, text in case.refused():
        for form in _walk.FORMS.values():
            with pytest.raises(SpecError, match=text):
                RoPE.from_config(form(config), part=part)


@pytest.mark.parametrize("form", [*_random.FORMS, *_vision.FORMS], ids=lambda form: form.name)
@pytest.mark.parametrize("seed", range(4))
def test_random_configs_are_equal(form, seed):
    wrong = [
        f"{given}\n  {layer}: {text}"
        for given, layer, probe in form.probes(seed)
        for text in _walk.differences(probe)
    ]
    assert not wrong, "\n".join(wrong)


# angles="float32"

needs_avx512 = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="PyTorch's power has other bits without AVX-512",
)


@needs_avx512
@pytest.mark.parametrize("name", _float32.CASES)
def test_float32_tables_have_the_same_bits(name):
    """Compare cos and sin of the model's own rotary module at 100,000 positions."""
    _, config, layer_type = _float32.CASES[name]
    rope = RoPE.from_config(config, layer_type=layer_type).at_length(_float32.LENGTH)
    made = replace(rope, angles="float32").rotation(range(_float32.LENGTH), like=torch.zeros(1))
    cos, sin, _, _ = _float32.tables(name)
    assert torch.equal(made.cos, cos)
    assert torch.equal(made.sin, sin)


# Models whose code has other steps, by their reason; the frequencies of the first group differ too.
INV_FREQ = "from_config states the frequencies by inv_freq or 2π/period, in float64"
COMPLEX = "cos and sin of torch.polar, or an angle of several products"
OTHER_STEPS = {
    **dict.fromkeys(("dinov3_vit", "eomt_dinov3", "sapiens2", "glm4_moe", "glm4v_moe", "esmfold2"), INV_FREQ),
    **dict.fromkeys(("llama4", "deepseek_v2", "musicflamingo"), COMPLEX),
}


@needs_avx512
@pytest.mark.parametrize("case", [c for c in CASES if c.probes], ids=lambda case: case.id)
def test_float32_angles_of_every_class(case):
    """Compare the bits of the frequencies, and of cos and sin where the model has tables."""
    wrong = [text for probe in case.probes() for text in _walk.other_bits(probe)]
    if case.model not in OTHER_STEPS:
        assert not wrong, "\n".join([case.id, *wrong])


@needs_avx512
def test_every_model_with_other_steps_differs():
    """A model whose bits are equal is no exception."""
    models = {c.model for c in CASES if c.probes and any(t for p in c.probes() for t in _walk.other_bits(p))}
    assert models == OTHER_STEPS.keys()


@needs_avx512
@pytest.mark.parametrize("kind", sorted(ROPE_INIT_FUNCTIONS))
def test_float32_frequencies_of_random_configs_have_the_same_bits(kind):
    """Draw rules, bases and lengths; the widths are whole blocks of 64 features."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        config, length = _float32.drawn(kind, rng)
        rope = replace(RoPE.from_config(config).at_length(length), angles="float32")
        omegas, amplitude = _float32.frequencies(config, length)
        assert rope.frequencies == tuple(omegas), config
        assert rope.amplitude == amplitude, config


@needs_avx512
def test_the_golden_frequencies_are_current():
    assert _float32.GOLDEN.read_text(encoding="utf-8") == _float32.golden(), (
        "write it with PYTHONPATH=tests python -m hf._float32"
    )


def test_the_table_is_current():
    assert _walk.TABLE.read_text(encoding="utf-8") == _walk.table(), (
        "write it with PYTHONPATH=tests python -m hf._walk"
    )
