"""The rotary parameters of one kind of layer, as its scaling rule and its rotary module read them."""

from dataclasses import dataclass

from rope_array._config._document import Spot, said
from rope_array._config._models import Convention
from rope_array._config._tables import RotaryParameters, Values
from rope_array._errors import ConfigError

CLASS_OWN = "transformers takes the class's own rope_parameters instead"


@dataclass
class Layer:
    """One kind of layer: its rotary parameters, the part's other values, and how the model reads them."""

    spot: Spot
    values: Values
    table: RotaryParameters
    convention: Convention
    label: str
    kind: str  # of the rule

    def original(self) -> int:
        """Return the trained context: beside the parameters, in them, or else the whole context."""
        name = "original_max_position_embeddings"
        own = self.table.get(name)
        if not self.label and self.values.get(name) is not None:
            top = self.values.integer(name)
            if own not in (None, top):
                self.spot.note(
                    f"{name} is {top} beside the rotary parameters, and {said(own)} in them is not used"
                )
            return top
        if own is not None:
            return self.table.integer(name)
        self.spot.inferred[name] = "max_position_embeddings"
        return self.values.integer("max_position_embeddings")

    def stretch(self) -> float:
        """Return the factor, or else how many times the context is the trained one."""
        factor = self.table.optional("factor")
        return self.values.integer("max_position_embeddings") / self.original() if factor is None else factor

    def share(self) -> float:
        """Return the share of the head that turns."""
        stated = self.stated_share()
        return self.default_share() if stated is None else stated

    def stated_share(self) -> float | None:
        """Return the share that the config states, in the parameters or beside them."""
        own = self.table.optional("partial_rotary_factor")
        names = self.convention.share_keys
        top = next((name for name in names if self.values.stated(name) is not None), None)
        above = None if top is None else self.values.number(top)
        # With parameters by layer type the one above is only for those that have none.
        if own is not None and above not in (None, own) and not self.label:
            if "partial_rotary_factor" not in self.table.names:
                self.spot.note(f"{top} is not used: {CLASS_OWN}")
                return own
            raise ConfigError(
                f"partial_rotary_factor in the rotary parameters is {own}, and {top} {above}; leave one out."
            )
        share = above if own is None else own
        if share is not None and not 0 <= share <= 1:
            raise ConfigError(f"partial_rotary_factor is {share}; give a number from 0 to 1.")
        return share

    def default_share(self) -> float:
        """Return the share of the head that turns where none is stated."""
        defaults = self.spot.defaults
        added = defaults.get("added", {}).get("partial_rotary_factor")
        share = defaults.get("partial_rotary_factor") if added is None else added
        if share is None:
            return self.convention.share if self.kind == "default" else 1.0
        self.spot.inferred["partial_rotary_factor"] = share
        return float(share)
