"""Services that every layer uses: records, errors and log, files with checksums, plug-ins.

Contents: `artifacts`, `tensor_files`, `reproduction`; `plugins`, `caches`, `weights`; `logging`; `integrity`,
`system_files`, `openmp`, `processes`, `measurements`; `units`. A group uses only later groups.
Invariants: only `tensor_files` imports torch at the top of a module. This namespace imports nothing.
Extending: a new service is a package here if at least two layers use it.
"""
