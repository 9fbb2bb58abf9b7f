"""Keys of older configs that the classes of transformers rename, by model type, from their configuration files.

Keys that a class declares in its `attribute_map` are in `_model_defaults`.
"""

from collections.abc import Mapping

# By convention: from an older key to the name of its value.
OLDER_KEYS: Mapping[str, Mapping[str, str]] = {
    "dots3_note_audio_encoder": {
        "whisper_config.d_model": "hidden_size",
        "whisper_config.encoder_attention_heads": "num_attention_heads",
    },
    "dots3_note_vision_encoder": {"embed_dim": "hidden_size", "num_heads": "num_attention_heads"},
    "step3p5_vision": {
        "width": "hidden_size",
        "heads": "num_attention_heads",
        "layers": "num_hidden_layers",
    },
}
