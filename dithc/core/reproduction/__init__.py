"""Documents of the paper targets, and the numbers printed in the paper.

Contents: `Document` holds the `Cell`, `Series` and `Picture` records of one table or figure (`TARGETS`) in a sealed
JSON file. `Reference` and `published` read the printed numbers.

Invariants: only measured and simulated cells have a value. A cell without a value has a reason. The ratio to the
printed number is computed. A document is validated when it is built and when it is read.

Extending: add a field to its class. Printed numbers go into `published_values.yaml`.
"""

from dithc.core.reproduction.published_values import Printed, Reference, published, read_reference
from dithc.core.reproduction.target_result import STATUSES, TARGETS, Cell, Document, Picture, Series

__all__ = [
    "STATUSES",
    "TARGETS",
    "Cell",
    "Document",
    "Picture",
    "Printed",
    "Reference",
    "Series",
    "published",
    "read_reference",
]
