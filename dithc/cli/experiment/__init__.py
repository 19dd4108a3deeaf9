"""Verbs about whole experiments: run one, say how far it is, write its report.

What: `run`, `status`, `report`; `screen` draws lines again and again in one place of a terminal.
Why: a person starts with these three, and with no other verb.
Invariants: a verb's module is loaded when the verb is called, and this door loads none.
How to change it: a new verb is a module here, a line in `VERBS` of `dithc.cli` and a word in its `ROOMS`.
"""

__all__ = []
