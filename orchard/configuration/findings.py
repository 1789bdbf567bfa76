"""What `orchard doctor` says about a machine, one line each."""

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """One line of the report. `remedy` is empty if nothing needs to be done."""

    what: str
    good: bool
    says: str
    remedy: str = ""
    needed: bool = False
    """Whether `up` cannot work without it."""
