"""Stub.

a

b
"""

from dithc.runs import atomic_write


def draw(document, stem):
    for s in (".svg", ".png"):
        atomic_write(stem.with_suffix(s), "x")


def write_csv(document, path):
    atomic_write(
        path,
        "\n".join(
            f"{c.row},{c.column},{c.quantity},{c.status},{c.value},{c.published},{c.ratio},{c.reason}"
            for c in document.cells
        ),
    )


def write_page(documents, path):
    atomic_write(path, "\n".join(d.to_json() for d in documents))


__all__ = ["draw", "write_csv", "write_page"]
