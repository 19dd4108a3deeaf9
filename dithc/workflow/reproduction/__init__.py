"""Tables and figures of the paper as cells, one command each, and their documents.

Contents: `plan_cells` returns the cells of each target on a node, with predicted seconds or a reason to skip. `build_target`
returns a document.

Invariants: equal settings and node produce equal plans. Skipped cells have a reason. Missing numbers stay missing. The
package does not import torch.

Extending: a target is a function in `targets` and a reader in `results`. Only `cost` predicts costs.
"""

from dithc.workflow.reproduction.compose import build_target
from dithc.workflow.reproduction.files import PaperFiles, format_cells, resolve_node
from dithc.workflow.reproduction.jobs import OUT, CellJob
from dithc.workflow.reproduction.plan import find_cell, plan_cells

__all__ = ["OUT", "CellJob", "PaperFiles", "build_target", "find_cell", "format_cells", "plan_cells", "resolve_node"]
