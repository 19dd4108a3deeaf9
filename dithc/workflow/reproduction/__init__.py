"""Tables and figures of the paper as cells, one command each, and their documents.

Contents: `plan` returns the cells of each target on a node, with predicted seconds or a reason to skip. `compose`
returns a document.

Invariants: equal settings and node produce equal plans. Skipped cells have a reason. Missing numbers stay missing. The
package does not import torch.

Extending: a target is a function in `targets` and a reader in `results`. Only `cost` predicts costs.
"""

from dithc.workflow.reproduction.compose import compose
from dithc.workflow.reproduction.files import PaperFiles, node_of, told
from dithc.workflow.reproduction.jobs import OUT, Job
from dithc.workflow.reproduction.plan import job_of, plan

__all__ = ["OUT", "Job", "PaperFiles", "compose", "job_of", "node_of", "plan", "told"]
