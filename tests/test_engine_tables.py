"""Tables of the layers of engines, filled in fake classes with vLLM's names and attributes.

tests/serving does the same with vLLM's own classes.
"""

import oracle
import pytest
import torch

from rope_array._engines.fill import fill_tables, is_filled, tables_of

pytestmark = pytest.mark.library("torch")
COMMON = {"head_size": 8, "rotary_dim": 8, "base": 10000, "is_neox_style": True}
LONGROPE = {"short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 3.0, 4.0], "short_mscale": 1.0}
LONGROPE |= {"long_mscale": 1.5, "original_max_position_embeddings": 3, "use_long_rope": True}
PLAIN, FAR = oracle.frequencies(8), 1 << 17


def make(cls, tables, **attributes):
    """Return a layer with tables of zeros, of the shapes and dtypes in `tables`."""
    layer = type(cls, (torch.nn.Module,), COMMON | attributes)()
    for name, (shape, dtype) in tables.items():
        layer.register_buffer(name, torch.zeros(shape, dtype=dtype), persistent=False)
    return layer


def check(table, positions, omegas=PLAIN, amplitude=1.0):
    """Compare rows with cos and sin by mpmath, within half an ulp of the dtype, and the bound of float64."""
    numbers = [oracle.cos_sin(p, omega) for p in positions for omega in omegas]
    expected = torch.tensor(numbers, dtype=torch.float64).view(len(positions), -1, 2).mT.flatten(1)
    assert table.shape == expected.shape
    unit = torch.finfo(table.dtype).eps / 4 * (1 if amplitude == 1 else 2)  # of numbers up to 1, and to 2
    assert (table.double() - expected * amplitude).abs().max() <= unit + 2.5e-16


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_table_is_rounded_once_in_place(dtype):
    layer = make("RotaryEmbedding", {"cos_sin_cache": ((FAR, 8), dtype)})
    table = layer.cos_sin_cache
    assert fill_tables(layer, 100) == []
    assert layer.cos_sin_cache is table
    rows = [0, 1, 65_535, 65_536, FAR - 1]
    check(table[rows], rows)


def test_a_short_table_and_its_copy_become_longer():
    tables = {"cos_sin_cache": ((5, 8), torch.float32), "cos_sin_cache_bf16": ((5, 8), torch.bfloat16)}
    layer = make("RotaryEmbedding", tables)
    assert fill_tables(layer, 7) == [*tables]
    for name, (_, dtype) in tables.items():
        assert getattr(layer, name).dtype == dtype
        check(getattr(layer, name), range(7))
    assert not layer.state_dict()


def test_longrope_has_both_tables_in_one():
    layer = make(
        "Phi3LongRoPEScaledRotaryEmbedding", {"long_short_cos_sin_cache": ((8, 8), torch.float32)}, **LONGROPE
    )
    assert fill_tables(layer, 6) == ["long_short_cos_sin_cache"]
    table = layer.long_short_cos_sin_cache
    check(table[:3], range(3))
    check(table[3:], range(6), [w / f for w, f in zip(PLAIN, LONGROPE["long_factor"], strict=True)], 1.5)


def test_dual_chunks_have_five_tables():
    rows = {"q": 3, "qc": 3, "k": 6, "qc_no_clamp": 3, "q_inter": 3}
    tables = {f"cos_sin_{name}_cache": ((count, 8), torch.float32) for name, count in rows.items()}
    layer = make("DualChunkRotaryEmbedding", tables, chunk_size=4, local_size=1)
    assert fill_tables(layer, 7) == ["cos_sin_k_cache"]
    positions = {"q": [0, 1, 2], "qc": [3, 4, 4], "k": [0, 1, 2, 0, 1, 2, 0]}
    positions |= {"qc_no_clamp": [3, 4, 5], "q_inter": [4, 5, 6]}
    for name, of_rows in positions.items():
        check(getattr(layer, f"cos_sin_{name}_cache"), of_rows)


def test_axes_share_a_table_and_patches_have_complex_numbers():
    sections = {"mrope_section": [1, 1, 2], "mrope_interleaved": False, "scaling_factor": None}
    layer = make("MRotaryEmbedding", {"cos_sin_cache": ((4, 8), torch.float32)}, **sections)
    fill_tables(layer)
    check(layer.cos_sin_cache, range(4))
    patches = {"rotary_dim": 8, "head_size": 16, "max_position_embeddings": 4}
    layer = make("Llama4VisionRotaryEmbedding", {"cos_sin_cache": ((5, 1, 8), torch.complex64)}, **patches)
    fill_tables(layer)
    x, y = torch.view_as_real(layer.cos_sin_cache[:, 0]).split(4, dim=1)
    check(x.mT.flatten(1), [1, 2, 1, 2, 0])
    check(y.mT.flatten(1), [1, 1, 2, 2, 0])


def test_a_table_that_something_overwrites_is_noticed():
    layer = make("RotaryEmbedding", {"cos_sin_cache": ((1000, 8), torch.float32)})
    ((table, runs),) = tables_of(layer).values()
    assert not is_filled(table, runs)
    fill_tables(layer)
    assert is_filled(table, runs)
    assert is_filled(table.bfloat16(), runs)
    table[999, 3] += 1e-6
    assert not is_filled(table, runs)


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        ({"cos_sin_cache": (5, 8), "cos_sin_cache_bf16": (5, 6)}, r"\(5, 6\)"),
        ({"cosines": (5, 8)}, "no table by a known name"),
    ],
    ids=["another shape", "another name"],
)
def test_other_tables_are_refused_before_one_is_written(tables, reason):
    layer = make("RotaryEmbedding", {name: (shape, torch.float32) for name, shape in tables.items()})
    with pytest.raises(ValueError, match=reason):
        fill_tables(layer, 7)
    assert not any(buffer.any() for buffer in layer.buffers())
