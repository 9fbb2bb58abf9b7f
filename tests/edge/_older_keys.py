"""The keys that transformers' config classes pop, rename and convert, and a telling value of each.

`keys_of` finds the keys in the classes' own code. A key of a class with a rotary embedding is in VALUES, in
COMPUTED, or in WITHOUT_EFFECT if it changes no rotation: any other key fails a test, so that it is noticed.
older_keys.json has these tables.
"""

import ast
import dataclasses
import importlib
import inspect
import json
import pathlib
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import transformers
from transformers import PreTrainedConfig

from rope_array._config._conventions import CONVENTIONS
from rope_array._config._model_defaults import ROTARY, SHARED

LAYERS = 8
PROPERTIES = ("layer_types", "layers_block_type")  # the type of each layer, in `to_dict` or not
Config = dict[str, Any]


def classes() -> list[type[PreTrainedConfig]]:
    """Return every config class of transformers' models; of classes that share a model type, the root."""
    by_model_type: dict[str, type[PreTrainedConfig]] = {}
    folder = pathlib.Path(transformers.__file__).parent / "models"
    for file in sorted(folder.glob("*/configuration_*.py")):
        module = importlib.import_module(f"transformers.models.{file.parent.name}.{file.stem}")
        defined = [cls for cls in vars(module).values() if getattr(cls, "__module__", "") == module.__name__]
        for cls in defined:
            is_config = inspect.isclass(cls) and issubclass(cls, PreTrainedConfig)
            if is_config and cls.model_type and cls.__name__ not in SHARED:
                by_model_type.setdefault(cls.model_type, cls)
    return list(by_model_type.values())


def has_rotation(cls: type[PreTrainedConfig]) -> bool:
    """Return whether the class itself, not only a part of it, has a rotary embedding that is known."""
    return cls.model_type in ROTARY or cls.model_type in CONVENTIONS


def keys_of(cls: type[PreTrainedConfig]) -> set[str]:
    """Return the keys that the class takes from `kwargs`, of `attribute_map`, and that choose layers."""
    keys = set(cls.attribute_map) | _keys_of_layers(cls)
    for base in cls.__mro__:
        if base.__module__.startswith("transformers.models."):
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
            keys |= {key for node in ast.walk(tree) for key in _keys_at(node)}
    return keys


_OF_LAYERS = re.compile(r"layer|block|idx|indices|indexes|interval|period|offset|every|freq$")


def _keys_of_layers(cls: type[PreTrainedConfig]) -> set[str]:
    """Return the fields that may differ by layer: lists by their names, and fields that properties read."""
    fields = {field.name: str(field.type) for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    names = {name for name, annotation in fields.items() if "list" in annotation and _OF_LAYERS.search(name)}
    for name in PROPERTIES:
        if isinstance(rule := inspect.getattr_static(cls, name, None), property):
            tree = ast.parse(textwrap.dedent(inspect.getsource(rule.fget)))  # type: ignore[arg-type]
            names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & fields.keys()
    return names


def _keys_at(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        if node.func.attr in ("pop", "get", "setdefault") and ast.unparse(node.func.value) == "kwargs":
            yield _text(node.args[0])
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "kwargs":
        yield _text(node.slice)
    elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "kwargs":
        yield _text(node.left)


def model_types_of(cls: type[PreTrainedConfig]) -> set[str]:
    """Return the model types of parts that the class compares with, to replace them."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    compared = [node for node in ast.walk(tree) if isinstance(node, ast.Compare) and _is_type(node.left)]
    constants = (leaf for node in compared for side in node.comparators for leaf in ast.walk(side))
    return {
        leaf.value for leaf in constants if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)
    }


def _is_type(node: ast.expr) -> bool:
    return "model_type" in ast.unparse(node)


def _text(node: ast.expr) -> str:
    """Return the key of an expression; for a computed key, its source between brackets."""
    return node.value if isinstance(node, ast.Constant) else f"<{ast.unparse(node)}>"


OLDER_TYPES = {"attention", "mamba", "deepseek_sparse_attention", "qwen_sparse_attention"}
YARN = {"factor": 4.0, "original_max_position_embeddings": 1024}
TABLES = json.loads(pathlib.Path(__file__).with_name("older_keys.json").read_text("utf-8"))
# Keys of the base class, of every model; of single classes too, and fields that `__post_init__` converts.
OF_EVERY_CLASS: dict[str, list[Any]] = TABLES["of every class"]
VALUES: dict[str, list[Any]] = OF_EVERY_CLASS | TABLES["of single classes"]
COMPUTED: dict[str, list[Config]] = TABLES["computed"]  # keys that the code computes, with configs of them
WITHOUT_EFFECT = frozenset(TABLES["without effect"])
