"""Keys of older configs that the classes of transformers rename, from their configuration files.

Keys that a class declares in its `attribute_map` are in `_model_defaults`.
"""

from collections.abc import Mapping

_STEP_VISION = {"width": "hidden_size", "heads": "num_attention_heads", "layers": "num_hidden_layers"}

# By convention: from an older key to the name of its value.
OLDER_KEYS: Mapping[str, Mapping[str, str]] = {
    "dots3_note_audio_encoder": {
        "whisper_config.d_model": "hidden_size",
        "whisper_config.encoder_attention_heads": "num_attention_heads",
    },
    "dots3_note_vision_encoder": {"embed_dim": "hidden_size", "num_heads": "num_attention_heads"},
    "falcon": {"n_embed": "hidden_size"},
    "step3p5_vision": _STEP_VISION,
    "step3p7:vision": _STEP_VISION,
}
