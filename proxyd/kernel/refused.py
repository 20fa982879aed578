"""How the kernel says no."""

from __future__ import annotations


class KernelRefusedError(Exception):
    """The kernel (or a tool in front of it) did not carry a transaction out; nothing of it has happened."""


class OutcomeUnclearError(KernelRefusedError):
    """A transaction ended without an answer to all of it: some of it, or all, may have happened nevertheless."""


class EndedFromOutsideError(OutcomeUnclearError):
    """What was to carry a transaction out was ended from outside; its size may be the reason, but no Service."""
