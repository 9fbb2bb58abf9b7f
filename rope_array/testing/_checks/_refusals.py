"""How a target refuses a call."""

from rope_array.testing._judge import Judge, check
from rope_array.testing._trial_log import ends_of


@check(values=False)
def refusals_raise(j: Judge) -> None:
    """A call that the target does not take raises an exception: it does not end the process."""
    ended = ends_of(j.target)
    assert not ended, f"a trial call: {'; '.join(dict.fromkeys(ended))}"
