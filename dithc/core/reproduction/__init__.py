"""Documents of the paper targets, and the numbers printed in the paper.

Contents: `TargetResult` holds the `ResultCell`, `Series` and `ResultImage` records of one table or figure (`TARGETS`) in a
checksummed JSON file. `Reference` and `published_value` read the printed numbers.

Invariants: only measured and simulated cells have a value. A cell without a value has a reason. The ratio to the
printed number is computed. A document is validated when it is built and when it is read.

Extending: add a field to its class. Printed numbers go into `reference.yaml`.
"""

from dithc.core.reproduction.published_values import Printed, Reference, published_value, read_reference
from dithc.core.reproduction.target_result import STATUSES, TARGETS, ResultCell, ResultImage, Series, TargetResult

__all__ = [
    "STATUSES",
    "TARGETS",
    "Printed",
    "Reference",
    "ResultCell",
    "ResultImage",
    "Series",
    "TargetResult",
    "published_value",
    "read_reference",
]
