"""Read a config from a file: a config.json, or a GGUF file. Other files of a model's folder are refused."""

import json
from pathlib import Path
from typing import Any

from rope_array._config._part import quoted
from rope_array._config._tables import read_table
from rope_array._errors import ConfigError, short

# Far above every published config, and small enough that a hostile config costs no time.
_MOST_BYTES = 8 * 2**20
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".npz", ".onnx", ".pte", ".h5", ".msgpack")


def load_file(path: str) -> dict[str, Any]:
    """Return the content of a config.json, or of the one in a folder, or the values of a GGUF file."""
    name = short(path)
    try:
        file = _find_file(Path(path), name)
        if file.stat().st_size == 0:  # reading a system file of size 0 may block for ever
            raise ConfigError(f"{name} is empty; give a config.json, or a GGUF file.")
        if (metadata := _read_other_file(file, name)) is not None:
            return metadata
        with file.open("rb") as stream:
            content = stream.read(_MOST_BYTES + 1)
    except ConfigError:
        raise
    except (OSError, ValueError) as problem:  # ValueError: a name that no file can have
        why = getattr(problem, "strerror", None) or type(problem).__name__
        raise ConfigError(f"{name} cannot be read: {why}.") from None
    if len(content) > _MOST_BYTES:
        raise ConfigError(
            f"{name} has more than {_MOST_BYTES} bytes, above the config.json of any model: give that file."
        )
    return _parse(content, name)


_NOT_FETCHED = "To read a model of a hub, download its config.json first: nothing is fetched."


def _find_file(path: Path, name: str) -> Path:
    """Return the path of the config.json; a missing one may be the name of a model on a hub."""
    if path.is_dir():
        path = path / "config.json"
        if not path.exists():
            remedy = _other_config(path.parent)
            raise ConfigError(f"the folder {name} has no config.json; {remedy}. {_NOT_FETCHED}")
    if not path.exists():
        raise ConfigError(
            f"no file or folder here is named {name}; give the path of a config.json, or of the folder that "
            f"holds it. {_NOT_FETCHED}"
        )
    if not path.is_file():  # a device or a pipe may have no end
        raise ConfigError(f"{name} is no regular file; give a config.json, or the folder that holds it.")
    return path


def _parse(content: bytes, name: str) -> dict[str, Any]:
    try:
        document = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_unique_keys)
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError(f"{name} is nested too deeply to be a config.") from None
    except ValueError as problem:
        digits = "set_int_max_str_digits" in str(problem)
        why = "a number has too many digits" if digits else problem
        raise ConfigError(f"{name} is no JSON that can be read: {why}; give a config.json.") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{name} holds {quoted(document)}; give a config.json, which holds an object.")
    return document


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise ConfigError(f"the key {quoted(name)} appears twice in one object; leave one of them out.")
        content[name] = value
    return content


def _read_other_file(path: Path, name: str) -> dict[str, Any] | None:
    """Return the content of a file that is no JSON; None for a JSON file. Refuse files that are no config."""
    if _is_gguf(path):
        from rope_array._config._gguf import metadata

        return metadata(path, name)
    if path.suffix in _WEIGHTS or path.name.endswith(".index.json"):
        raise ConfigError(
            f"{name} is a file of weights, which states no rotation; give the config.json beside it."
        )
    other_files = read_table("formats.toml")["other_files"]
    if path.name in other_files:
        raise ConfigError(f"{name} is {other_files[path.name]}.")
    return None


def _is_gguf(path: Path) -> bool:
    """Return whether a file begins as a GGUF file does, or is named as one."""
    with path.open("rb") as stream:
        return stream.read(4) == b"GGUF" or path.name.endswith(".gguf")


def _other_config(folder: Path) -> str:
    """Return the remedy, for an error, where a folder has no config.json."""
    for pattern in ("params.json", "transformer/config.json", "original/config.json", "*.gguf"):
        if paths := sorted(folder.glob(pattern)):
            return f"give the path of its {paths[0].relative_to(folder)}"
    return "give the path of one"
