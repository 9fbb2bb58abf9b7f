"""What one rotary module computes: the fields of the rope that turns as it does."""

from collections.abc import Callable
from typing import Any

from rope_array._config._document import said
from rope_array._config._layer import CLASS_OWN, Layer
from rope_array._config._rules import XDROPE, rule_of
from rope_array._errors import ConfigError
from rope_array._spec.axes import Axes
from rope_array._spec.frequencies import Scaling, frequencies
from rope_array._spec.scaling import Reversed, YaRN
from rope_array._spec.validation import integer

_LAYOUTS: dict[str, Callable[[int, int, int], Axes]] = {
    "chunked": lambda t, h, w: Axes.chunked(t, h, w),
    "interleaved": lambda t, h, w: Axes.interleaved(t, h, w),
    # ERNIE states its sections in the order h, w, t.
    "alternating": lambda h, w, t: Axes.alternating(t, h, w),
}


class Module(Layer):
    """The rotary module of one kind of layer."""

    def fields(self, base: float | None) -> dict[str, Any]:
        """Return the fields of the module's rope; a base that is given goes before those of the config."""
        base = self._base() if base is None else base
        head = self.values.width(*self._widths())
        width = self._rotated(head)
        rotary = width + width % 2  # an odd width has a last pair with one feature beyond it
        if rotary > head:
            raise ConfigError(f"the rotated width is {width} of a head of {head}; features turn in pairs.")
        start = head - rotary if self.convention.start == "last" else 0
        place: dict[str, Any] = {"head_dim": head, "rotary_dim": rotary, "rotary_start": start}
        if self.convention.note:
            self.spot.note(self.convention.note)
        return {"base": base, **place, **self._pairing(), **self._turning(base, width, rotary)}

    def _widths(self) -> tuple[str, ...]:
        keys = self.convention.width
        unset = self.convention.null_head_dim and self.values.content.get("head_dim", 0) is None
        return tuple(key for key in keys if key != "head_dim") if unset else keys

    def _pairing(self) -> dict[str, Any]:
        convention = self.convention
        flag = convention.pairing_flag
        value = None if flag is None else self.values.get(flag)
        if value not in (None, False, True):
            raise ConfigError(f"{flag} is {said(value)}; it must be true or false.")
        halves = value is not None and not value
        made = {
            "pairing": "half" if halves else convention.pairing,
            "out_pairing": None if halves else convention.out_pairing,
        }
        self.spot.inferred |= {key: value for key, value in made.items() if value}
        stated = self.table.get("interleaved")
        if stated is not None and bool(stated) is not (made["pairing"] == "interleaved"):
            raise ConfigError(
                f"interleaved in the rotary parameters is {said(stated)}, and the model's code has "
                f"{made['pairing']} pairs."
            )
        return made

    def _turning(self, base: float, width: int, rotary: int) -> dict[str, Any]:
        """Return the fields of what drives the lanes, and how fast."""
        convention = self.convention
        made: dict[str, Any] = {"axes": self._axes(rotary)}
        if convention.attention_factor is not None:
            made["attention_factor"] = convention.attention_factor(self.values)
        if convention.inv_freq is not None:
            return {**made, "inv_freq": convention.inv_freq(self.values, rotary)}
        rule = rule_of(self, width)
        if convention.sign < 0:
            self.spot.inferred["direction"] = "the other way round"
            rule = Reversed(rule)
        return {**made, **(_of_odd(base, width, rule) if width % 2 else {"scaling": rule})}

    # The base

    def _base(self) -> float:
        names = self.convention.theta_keys
        top = next((name for name in names if self.values.stated(name) is not None), None)
        if self.table.get("rope_theta") is not None:
            self._compare(top)
            return self.table.number("rope_theta")
        if top is not None:
            if self.convention.theta_note and "." in top:
                self.spot.note(self.convention.theta_note)
            return self.values.number(top)
        defaults = self.spot.defaults
        known = (defaults.get(name) for name in (*names, "default_theta"))
        base = next((float(value) for value in known if value is not None), self.convention.theta)
        self.spot.inferred["rope_theta"] = base
        return base

    def _compare(self, top: str | None) -> None:
        """Refuse two bases, unless the model's class has both."""
        own = self.table.content["rope_theta"]
        if top is None or self.label or self.values.stated(top) == own:
            return
        if "rope_theta" not in self.table.names:
            self.spot.note(f"{top} is not used: {CLASS_OWN}")
        elif top in self.spot.defaults:
            self.spot.note(f"{top} is not used: rope_parameters has a rope_theta of its own")
        else:
            raise ConfigError(
                f"{top} is {said(self.values.stated(top))}, and rope_theta in the rotary parameters "
                f"{said(own)}; leave one out."
            )

    # The width

    def _rotated(self, head: int) -> int:
        convention = self.convention
        if convention.rotated is not None:
            width = convention.rotated(self.values, head)
        elif self.kind == "proportional" or (self.kind == "default" and not convention.partial):
            width = head
        else:
            width = self._partial(head)
        if (stated := self.table.get("rope_dim")) is not None and stated != width:
            raise ConfigError(
                f"rope_dim in the rotary parameters is {said(stated)}, and the model's code turns "
                f"{said(width)} features of a head."
            )
        if not 0 <= width <= head:
            raise ConfigError(f"the rotated width is {said(width)}, and the head is {head} wide.")
        return width

    def _partial(self, head: int) -> int:
        absolute, share = self._absolute(), self.stated_share()
        if absolute is None:
            share = self.default_share() if share is None else share
            return int(head * share)
        if share is not None and int(head * share) != absolute:
            raise ConfigError(
                f"partial_rotary_factor {share} of a head of {head} is {int(head * share)}, and the rotated "
                f"width is stated as {said(absolute)}; leave one out."
            )
        return absolute

    def _absolute(self) -> int | None:
        """Return the rotated width where it is stated in features."""
        if self.table.get("rope_dim") is not None:
            return self.table.integer("rope_dim")
        if self.values.stated("rotary_dim") is None:
            return None
        if self.convention.absolute:
            return self.values.integer("rotary_dim")
        self.spot.note("rotary_dim is not used: the model's code in transformers does not read it")
        return None

    # The axes

    def _axes(self, rotary: int) -> Axes | None:
        convention = self.convention
        if convention.axes is not None:
            return convention.axes(self.values, rotary)  # type: ignore[no-any-return]
        if self.table.get("xdrope_section") is not None:
            raise ConfigError(f"xdrope_section is given: {XDROPE}.")
        if (stated := self.table.get("mrope_section")) is not None:
            return self._stated_axes(stated, rotary // 2)
        if convention.default_sections is None or not rotary:
            return None
        self.spot.inferred["mrope_section"] = convention.default_sections
        if convention.sections == "interleaved":
            return _as_far_as_it_goes(convention.default_sections, rotary // 2)
        return self._stated_axes(convention.default_sections, rotary // 2)

    def _stated_axes(self, given: Any, lanes: int) -> Axes | None:
        if self.convention.sections is None:
            self.spot.note("mrope_section is not used: to the model's code a token has one position")
            return None
        if not isinstance(given, (list, tuple)) or len(given) != 3:
            raise ConfigError(f"mrope_section is {said(given)}; it must be a list of three numbers of pairs.")
        by_turns = self.table.get("mrope_interleaved")
        if by_turns is not None and bool(by_turns) is not (self.convention.sections == "interleaved"):
            raise ConfigError(
                f"mrope_interleaved is {said(by_turns)}, and the model's code lays its sections out "
                f"{self.convention.sections}."
            )
        sections = [integer(f"mrope_section[{i}]", size, 0) for i, size in enumerate(given)]
        if sum(sections) != lanes:
            raise ConfigError(
                f"mrope_section sums to {said(sum(sections))} pairs; the rotated width has {lanes} of them."
            )
        return _LAYOUTS[self.convention.sections](*sections)


def _of_odd(base: float, width: int, rule: Scaling | None) -> dict[str, Any]:
    """Return the frequencies of an odd width: (width + 1)/2 of them, in steps of 2/width."""
    if isinstance(rule, YaRN) or (rule is not None and not rule.resolved):
        raise ConfigError(f"the rotated width is {width}, odd, which {type(rule).__name__} cannot take.")
    omegas = frequencies(base, width, (width + 1) // 2, rule, "exact")
    amplitude = 1.0 if rule is None else rule.amplitude
    return {
        "inv_freq": tuple(map(float, omegas)),
        **({} if amplitude == 1.0 else {"attention_factor": amplitude}),
    }


def _as_far_as_it_goes(sections: tuple[int, ...], lanes: int) -> Axes:
    """Lay out the code's own sections along fewer or more lanes than they sum to, as the code does."""
    return Axes(tuple(i % 3 if i < 3 * sections[i % 3] else 0 for i in range(lanes)), count=3)
