"""Long measurements in several sittings: what was measured is kept, and the same command goes on where it was stopped.

What: a `Sitting` takes a measurement unit by unit: a run of a training, a case, a round in which contenders take turns. Each is a
line of a file as soon as it is made. Ctrl-C and SIGTERM (a time limit, a scheduler) end the unit that runs, which is lost; who
measures then makes its result of the units that there are. `sitting` begins one, `now` is the one that goes on.
Why: what takes hours is stopped now and then, and a machine's time is dear.
Invariants: a unit is complete or absent. Units measured with different arguments, or in a different environment, are discarded.
Outside a sitting an interruption propagates.
How to change it: what is a unit is said where it is measured, by its name.
"""

from dithc.sittings.sitting import Sitting, Stopped, difference, now, sitting

__all__ = ["Sitting", "Stopped", "difference", "now", "sitting"]
