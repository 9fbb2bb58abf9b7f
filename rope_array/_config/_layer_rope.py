"""From the rotary module of one layer type to the fields of a rope."""

from typing import Any

from rope_array._config._convention import Note
from rope_array._config._layer import CLASS_OWN, UNREAD_FACTOR, Layer
from rope_array._config._part import listed, quoted
from rope_array._config._tables import KEYS, REFUSED
from rope_array._config._values import keys_of_rules
from rope_array._errors import ConfigError
from rope_array._spec.axes import Axes
from rope_array._spec.frequencies import Scaling, frequencies
from rope_array._spec.validation import integer

_OF_EVERY_RULE = frozenset(KEYS["parameters"]["of_every_rule"])


class LayerRope(Layer):
    """The rope of one layer type, as the model's rotary module has it."""

    def fields(self, base: float | None) -> dict[str, Any]:
        """Return the fields of the module's rope; `base` overrides the config's."""
        base = self._base() if base is None else base
        head = self.values.width(*self.convention.width)
        width = self._rotated(head)
        rotary = width + width % 2  # the last pair of an odd width includes one feature beyond it
        if rotary > head:
            raise ConfigError(
                f"the rotated width is {width} of a head of {head}; give an even width, for whole pairs."
            )
        start = head - rotary if self.convention.start == "last" else 0
        rotated_slice = {"head_dim": head, "rotary_dim": rotary, "rotary_start": start}
        if self.convention.note:
            self.record.note(self.convention.note)
        return {
            "base": base,
            **rotated_slice,
            **self._pairing(),
            **self._frequency_fields(base, width, rotary),
        }

    def _pairing(self) -> dict[str, Any]:
        pairing, out_pairing = self.convention.pairing, self.convention.out_pairing
        if self.convention.pairing_flag and self.values.flag(self.convention.pairing_flag) is False:
            pairing, out_pairing = "half", None
        pairings = {"pairing": pairing, "out_pairing": out_pairing}
        self.record.inferred |= {key: value for key, value in pairings.items() if value}
        interleaved = self.parameters.get("interleaved")
        if interleaved is not None and bool(interleaved) is not (pairing == "interleaved"):
            raise ConfigError(
                f"interleaved in the rotary parameters is {quoted(interleaved)}, and the model's code has "
                f"{pairing} pairs; leave interleaved out."
            )
        return pairings

    def _frequency_fields(self, base: float, width: int, rotary: int) -> dict[str, Any]:
        """Return the fields for the axes, frequencies and amplitude."""
        convention = self.convention
        fields: dict[str, Any] = {"axes": self._axes(rotary)}
        if convention.attention_factor is not None:
            fields["attention_factor"] = convention.attention_factor(self.values)
        if convention.inv_freq is not None:
            return {**fields, "inv_freq": convention.inv_freq(self.values, rotary)}
        rule = self._rule(width)
        is_explicit = width % 2 or _is_swapped(rule)
        self._note_factor(rule)
        if convention.sign < 0:
            from rope_array._spec.scaling import Reversed

            self.record.inferred["direction"] = "negative angles"
            rule = Reversed(rule)
        return {**fields, **(_explicit_fields(base, width, rule) if is_explicit else {"scaling": rule})}

    def _note_factor(self, rule: Scaling | None) -> None:
        """Note a factor below 1, which may be inverted. diffusers' divide coordinates of other units."""
        factor = getattr(rule, "factor", None) or 1.0
        is_longrope = type(rule).__name__ == "LongRoPE"
        if is_longrope and self.parameters.get("factor") is None:  # of the contexts
            return
        if 0 < factor < 1 and self.record.inferred.get("format") != "diffusers":
            effect = (
                "it has no effect" if is_longrope else "the rule raises frequencies, and shortens the context"
            )
            self.record.note(
                f"the factor {factor:.6g} is below 1: {effect}; if it is to stretch the context, the factor "
                f"is inverted: state {1 / factor:.6g}"
            )

    def _rule(self, width: int) -> Scaling | None:
        """Return the scaling rule of the model's code, or by its name."""
        if self.convention.scaling is not None:
            return self.convention.scaling(self.values, width)  # type: ignore[no-any-return]
        self._check_unused_parameters()
        rule = None
        if self.rule_name != "default":
            from rope_array._config._rules import rule_of

            rule = rule_of(self, width)
        # The rules of YaRN read the factor, or have a note of their own.
        if self.rule_name not in ("yarn", "deepseek_yarn") and self.attn_factor() != 1:
            self.record.note(UNREAD_FACTOR)
        return rule

    def _check_unused_parameters(self) -> None:
        """Note parameters that the rule does not use; refuse a factor on which libraries differ."""
        parameters = {k: v for k, v in self.parameters.content.items() if v is not None}
        others = parameters.keys() - _OF_EVERY_RULE
        if unused := sorted(others - keys_of_rules()[self.rule_name] if others else others):
            self.record.note(f"rope_type {self.rule_name!r} does not use {listed(unused)}")
        if (extrapolation := parameters.get("extrapolation_factor", 1)) != 1:
            raise ConfigError(
                f"{self.parameters.prefix}extrapolation_factor is {quoted(extrapolation)}, and libraries "
                "differ on its effect; write the frequencies of the model's code: RoPE(head_dim, "
                "inv_freq=...)."
            )

    # The base

    def _base(self) -> float:
        names = self.convention.theta_keys
        top = self.values.stated_key(names)
        self._refuse_null(names, top)
        if self.parameters.get("rope_theta") is not None:
            self._compare(top)
            return self.parameters.number("rope_theta")
        if top is not None:
            return self.values.number(top)
        defaults = self.config_part.defaults
        bases = (defaults.get(name) for name in (*names, "default_theta"))
        base = next((float(base) for base in bases if base is not None), self.convention.theta)
        self.record.inferred["rope_theta"] = base
        return base

    def _refuse_null(self, names: tuple[str, ...], top: str | None) -> None:
        """Refuse a base that is stated as null: no default takes its place."""
        null = next((name for name in names if top is None and self._is_null(name)), None)
        if "rope_theta" in self.parameters.content:
            null = self._base_key() if self.parameters.content["rope_theta"] is None else None
        if null is None:
            return
        remedy = "state the base that the model was trained with"
        if null != "rope_theta":
            note = KEYS["null_bases"].get(null)
            raise ConfigError(f"{null} is null, which is no base; {remedy}{f' ({note})' if note else ''}.")
        of_transformers = (
            " A config object of transformers has a null base after rope_scaling is assigned: assign "
            "rope_parameters, with rope_theta."
        )
        of_class = of_transformers if not self.config_part.foreign else ""
        raise ConfigError(f"rope_theta is null, which is no base; {remedy}.{of_class}")

    def _is_null(self, name: str) -> bool:
        """Return whether the code reads a null; transformers reads no base inside of another object."""
        return self.values.is_null(name) and not ("." in name and self.config_part.in_transformers)

    def _base_key(self) -> str:
        """Return the key that states the base of the layer type."""
        is_stated = "rope_theta" in self.parameters.names
        return "rope_theta" if is_stated else self.convention.bases.get(self.label, "rope_theta")

    def _compare(self, top: str | None) -> None:
        """Refuse two different bases, unless the model's class has both."""
        base = self.parameters.content["rope_theta"]
        if top is None or self.values.stated(top) == base:
            return
        if "rope_theta" not in self.parameters.names and self.convention.parameters is None:
            text = f"{top} is not used: {CLASS_OWN}"
            if self.config_part.foreign:  # llama.cpp's
                own = f"layers of the type {quoted(self.label)} have the base {base:g}"
                text = Note(f"{top} is not used: {own}", "fact")
            self.record.note(text)
        elif self.label:
            return  # a base for the layer types that state none
        elif top in self.config_part.defaults:
            self.record.note(f"{top} is not used: rope_parameters has a rope_theta of its own")
        else:
            raise ConfigError(
                f"{top} is {quoted(self.values.stated(top))}, and rope_theta in the rotary parameters "
                f"{quoted(base)}; leave one out."
            )

    # The width

    def _rotated(self, head: int) -> int:
        convention = self.convention
        if convention.rotated is not None:
            width: int = convention.rotated(self.values, head)
        elif self.rule_name == "proportional" or (self.rule_name == "default" and not convention.partial):
            width = head
        else:
            width = self._partial(head)
        if (rope_dim := self.parameters.get("rope_dim")) is not None and rope_dim != width:
            raise ConfigError(
                f"rope_dim in the rotary parameters is {quoted(rope_dim)}, and the model's code rotates "
                f"{quoted(width)} features of a head; leave rope_dim out."
            )
        if not 0 <= width <= head:
            raise ConfigError(f"the rotated width is {quoted(width)}; give one from 0 to the head's {head}.")
        return width

    def _partial(self, head: int) -> int:
        absolute, share = self._absolute(), self.stated_share()
        if absolute is None:
            share = self.default_share() if share is None else share
            return int(head * share)
        if share is not None and int(head * share) != absolute:
            raise ConfigError(
                f"partial_rotary_factor {share} of a head of {head} is {int(head * share)}, and the rotated "
                f"width is stated as {quoted(absolute)}; leave one out."
            )
        return absolute

    def _absolute(self) -> int | None:
        """Return the rotated width if it is stated in features."""
        if self.parameters.get("rope_dim") is not None:
            return self.parameters.integer("rope_dim")
        if self.values.stated("rotary_dim") is None:
            return None
        if self.convention.absolute:
            return self.values.integer("rotary_dim")
        self.record.note(self.config_part.unread("rotary_dim"))
        return None

    # The axes

    def _axes(self, rotary: int) -> Axes | None:
        convention = self.convention
        if convention.axes is not None:
            return convention.axes(self.values, rotary)  # type: ignore[no-any-return]
        if self.parameters.get("xdrope_section") is not None:
            raise ConfigError(f"xdrope_section is not supported: {REFUSED['xdrope']}.")
        if (sections := self.parameters.get("mrope_section")) is not None:
            return self._axes_of_sections(sections, rotary // 2)
        if convention.default_sections is None or not rotary:
            return None
        self.record.inferred["mrope_section"] = convention.default_sections
        if convention.sections == "interleaved":
            from rope_array._config._maps import clipped_axes

            return clipped_axes(convention.default_sections, rotary // 2)
        return self._axes_of_sections(convention.default_sections, rotary // 2)

    def _axes_of_sections(self, sections: Any, num_pairs: int) -> Axes | None:
        if self.convention.sections is None:
            self.record.note("mrope_section is not used: in the model's code a token has one position")
            return None
        if not isinstance(sections, (list, tuple)) or len(sections) != 3:
            raise ConfigError(f"mrope_section is {quoted(sections)}; give a list of three numbers of pairs.")
        interleaved = self.parameters.get("mrope_interleaved")
        if interleaved is not None and bool(interleaved) is not (self.convention.sections == "interleaved"):
            raise ConfigError(
                f"mrope_interleaved is {quoted(interleaved)}, and the sections of the model's code are "
                f"{self.convention.sections}; leave mrope_interleaved out."
            )
        sizes = [integer(f"mrope_section[{i}]", size, 0) for i, size in enumerate(sections)]
        if sum(sizes) != num_pairs:
            raise ConfigError(
                f"mrope_section sums to {quoted(sum(sizes))} pairs; give sections that sum to the "
                f"{num_pairs} pairs of the rotated width."
            )
        if self.convention.sections == "alternating":
            sizes = [sizes[2], *sizes[:2]]  # ERNIE states its sections in the order h, w, t
        return getattr(Axes, self.convention.sections)(*sizes)  # type: ignore[no-any-return]


def _is_swapped(rule: Scaling | None) -> bool:
    """Return whether a rule has values that no field `scaling` may have."""
    if rule is None:
        return False
    from rope_array._config._rules import SwappedYaRN

    return isinstance(rule, SwappedYaRN)


def _explicit_fields(base: float, width: int, rule: Scaling | None) -> dict[str, Any]:
    """Return the frequencies of an odd width, with exponents in steps of 2/width, or of swapped betas.

    An odd width has (width + 1)/2 frequencies.
    """
    from rope_array._spec.scaling import YaRN

    if width % 2 and (isinstance(rule, YaRN) or (rule is not None and not rule.resolved)):
        raise ConfigError(f"the rotated width is {width}; {type(rule).__name__} needs an even width.")
    omegas = frequencies(base, width, (width + 1) // 2, rule, "exact")
    amplitude = 1.0 if rule is None else rule.amplitude
    return {
        "inv_freq": tuple(map(float, omegas)),
        **({} if amplitude == 1.0 else {"attention_factor": amplitude}),
    }
