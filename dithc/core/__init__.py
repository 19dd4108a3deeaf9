"""Services that every layer uses: records, errors and log, files with checksums, plug-ins.

Contents: `artifacts`, `tensor_files`, `reproduction`; `plugins`, `caches`, `weights`; `logging`; `integrity`, `posthoc_ema`,
`clutter`, `openmp`. Each line of packages uses only later ones.
Invariants: no module imports torch at its top. This namespace imports nothing.
Extending: a new service is a package here if at least two layers use it.
"""
