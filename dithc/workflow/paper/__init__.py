"""The tables and figures of the paper as work for one machine: cells that each are one command, and what is read from them.

What: `plan` says which cells each target has on a node, each with its command and predicted seconds, or why it is skipped;
`compose` makes the document of a target from what its cells wrote.
Why: everything that a target runs follows from one key, `paper.scale`; and a cell is what is lost when a run is interrupted.
Invariants: the same settings and node give the same plan, wherever it is read; a cell that is skipped has a reason; no number
is made up where a cell did not measure one. Nothing here imports torch: rule files read the plan.
How to change it: what a target runs is a function of `targets`, what is read from it one of `results`; what a cell costs is
said in `cost` alone.
"""

from dithc.workflow.paper.compose import compose
from dithc.workflow.paper.files import PaperFiles, node_of, told
from dithc.workflow.paper.jobs import OUT, Job
from dithc.workflow.paper.plan import job_of, plan

__all__ = ["OUT", "Job", "PaperFiles", "compose", "job_of", "node_of", "plan", "told"]
