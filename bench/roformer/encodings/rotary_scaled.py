"""RoPE with other frequencies, for sequences longer than in training.

None has weights: a model trained with `rope` takes any of them in place of its encoding, as it is.
"""

import rope_array as ra

from .rotary import Rotary


class RotaryLinear(Rotary):
    """Position interpolation: all frequencies divided by `factor` (Chen et al., arXiv 2306.15595)."""

    def __init__(self, head_dim, num_heads, max_length, causal=False, factor=2.0):
        super().__init__(head_dim, num_heads, max_length, causal, scaling=ra.Linear(factor))


class RotaryNTK(Rotary):
    """NTK-aware scaling: the lowest frequency divided by `factor`, the highest kept (bloc97, 2023)."""

    def __init__(self, head_dim, num_heads, max_length, causal=False, factor=2.0):
        super().__init__(head_dim, num_heads, max_length, causal, scaling=ra.NTKAware(factor))


class RotaryYaRN(Rotary):
    """YaRN: high frequencies kept, low frequencies divided by `factor` (Peng et al., arXiv 2309.00071).

    Frequencies count as high by their rotations in `original_length` positions, the length of training: by
    default max_length/factor. Scores have the factor (0.1·ln factor + 1)², the paper's 1/t.
    """

    def __init__(self, head_dim, num_heads, max_length, causal=False, factor=2.0, original_length=None):
        scaling = ra.YaRN(factor, original_length or max_length / factor)
        super().__init__(head_dim, num_heads, max_length, causal, scaling=scaling)
