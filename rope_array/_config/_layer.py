"""The rotary parameters of one layer type, as its scaling rule and its rotary module read them."""

from dataclasses import dataclass

from rope_array._config._convention import Convention
from rope_array._config._part import ConfigPart, Record, quoted
from rope_array._config._values import PartValues, RotaryParameters
from rope_array._errors import ConfigError

UNREAD_FACTOR = "attn_factor is not used: transformers does not read it"
CLASS_OWN = "transformers takes the class's own rope_parameters instead"


@dataclass
class Layer:
    """One layer type: its rotary parameters, the part's other values, and the model's convention."""

    values: PartValues
    parameters: RotaryParameters
    convention: Convention
    label: str
    rule_name: str  # of the scaling rule

    @property
    def config_part(self) -> ConfigPart:
        """The part of the config."""
        return self.values.config_part

    @property
    def record(self) -> Record:
        """The record of the reading."""
        return self.values.record

    def original(self) -> int:
        """Return the trained context, of the part or the rotary parameters; else the whole context."""
        name = "original_max_position_embeddings"
        of_rule = self.parameters.get(name)
        if not self.label and self.values.get(name) is not None:
            top = self.values.integer(name)
            if of_rule not in (None, top):
                self.record.note(
                    f"{name} is {top} outside of the rotary parameters, and {quoted(of_rule)} in them is not "
                    "used"
                )
            return top
        if of_rule is not None:
            return self.parameters.integer(name)
        self.record.inferred[name] = "max_position_embeddings"
        context = self.values.integer("max_position_embeddings")
        self.record.note(
            f"{name} is missing: max_position_embeddings, {context}, is taken as the trained context, as in "
            "transformers; state it if the model was trained on fewer positions"
        )
        return context

    def stretch(self) -> float:
        """Return the factor, or else the ratio of the context and the trained context."""
        factor = self.parameters.optional("factor")
        return self.values.integer("max_position_embeddings") / self.original() if factor is None else factor

    def attn_factor(self) -> float:
        """Return a factor on cos and sin that engines take differently; transformers does not read it."""
        return self.parameters.number("attn_factor", 1.0)

    def share(self) -> float:
        """Return the share of the head that is rotated."""
        share = self.stated_share()
        return self.default_share() if share is None else share

    def stated_share(self) -> float | None:
        """Return the share that the config states, in the rotary parameters or in the part."""
        of_rule = self.parameters.optional("partial_rotary_factor")
        key = self.values.stated_key(self.convention.share_keys)
        of_part = None if key is None else self.values.number(key)
        # If parameters are stated by layer type, the part's share is for layer types without a share.
        if of_rule is not None and of_part not in (None, of_rule):
            if "partial_rotary_factor" not in self.parameters.names and self.convention.parameters is None:
                self.record.note(f"{key} is not used: {CLASS_OWN}")
                return of_rule
            if self.label:
                return of_rule
            raise ConfigError(
                f"partial_rotary_factor in the rotary parameters is {of_rule}, and {key} {of_part}; leave "
                "one out."
            )
        share = of_part if of_rule is None else of_rule
        if share is not None and not 0 <= share <= 1:
            raise ConfigError(f"partial_rotary_factor is {share}; give a number from 0 to 1.")
        return share

    def default_share(self) -> float:
        """Return the share of the head that is rotated if the config states none."""
        defaults = self.config_part.defaults
        added = defaults.get("added", {}).get("partial_rotary_factor")
        share = defaults.get("partial_rotary_factor") if added is None else added
        if share is None:
            return self.convention.share if self.rule_name == "default" else 1.0
        self.record.inferred["partial_rotary_factor"] = share
        return float(share)
