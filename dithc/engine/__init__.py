"""The machine: hardware, memory, kernels, communication and their diagnosis.

Contents, each using only packages after it: `doctor`; `automem` and `comm`; `hcops`; `cftp` and `memory`; `numa`; `native`;
`hardware` and `scheduler`.
Invariants: this namespace imports nothing, so that `engine.hardware` loads without torch.
Extending: a new kernel starts in `native` and becomes an operator in `hcops`.
"""
