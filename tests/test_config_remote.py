"""Configs of models whose code is on the hub; tests/configs/hub.json has their ropes by that code."""

import dataclasses
import math
import re

import docs_blocks
import numpy as np
import pytest
from config_cases import CASES, config_of, half, model

import rope_array as ra
from rope_array._config._conventions import REMOTE, convention_of
from rope_array.config import read

QWEN, TELECHAT = config_of("hub: Qwen-7B, hub"), config_of("hub: TeleChat-7B, hub")


@pytest.mark.parametrize("config", [QWEN, TELECHAT], ids=["Qwen", "TeleChat"])
def test_the_rule_beyond_the_trained_context_is_noted(config):
    (note,) = read(config).notes
    assert re.search(r"beyond 8192 positions.*NTKAware\((.*)\)", note)
    for n in (16384, 30000):  # get_ntk_alpha of the models' code
        namespace = {"NTKAware": ra.NTKAware, "ceil": math.ceil, "log2": math.log2, "n": n}
        scaling = eval(re.search(r"NTKAware\(.*1\)", note)[0], namespace)
        alpha = max(2 ** math.ceil(math.log2(n / 8192) + 1) - 1, 1)
        base = 1e4 * alpha ** (128 / 126)
        np.testing.assert_allclose(half(128, scaling=scaling).frequencies, half(128, base=base).frequencies)
    assert read({**QWEN, "use_dynamic_ntk": False}).notes == ()


def test_other_names_of_the_context():
    assert read(config_of("hub: GLM-4, layers of the hub")).context == 131072
    assert read(model("openelm", head_dim=64, max_context_length=4096)).context == 4096


def test_the_page_lists_every_family():
    page = (docs_blocks.DOCS / "configs.md").read_text("utf-8")
    section = page.partition("## Models whose code is on the hub")[2].partition("```")[0]
    assert {*re.findall(r"`([\w-]+)`", section)} >= {*REMOTE} - {"RefinedWebModel", "bailing_moe_v3_vl:text"}


# Families with the convention of another family, which is tested, but for the types of layers.
ALIKE = {
    "bailing_moe": "bailing_moe_linear minimax_m1 minimax_text_01",
    "internlm2": "aquila arctic deepseek minicpm orion ouro plamo telechat3 Yi",
    "jais": "btlm gpt_refact step1",
    "llada": "hf_olmo",
    "mixformer-sequential": "phi-msft",
    "RefinedWebModel": "RefinedWeb",
}


def test_every_family_is_tested_or_alike():
    alike = {name: tested for tested, names in ALIKE.items() for name in names.split()}
    cases = (case for name, case in CASES.items() if name.startswith("hub: "))
    tested = {case["config"].get("model_type") for case in cases}
    assert {*REMOTE} - tested - {"bailing_moe_v3_vl:text"} == alike.keys() - tested
    for names in alike.items():
        assert names[1] in tested
        conventions = [dataclasses.replace(convention_of(name), layer_type_of=None) for name in names]
        assert repr(conventions[0]) == repr(conventions[1])  # functions with options are never equal
