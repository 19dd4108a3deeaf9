"""Units of memory and rates, and the format of sizes."""

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
GIGA, TERA = 1e9, 1e12


def format_bytes(num_bytes: float) -> str:
    """Format a number of bytes: 2.30 GiB, 40.00 MiB, 512 B."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.2f} {name}"
    return f"{num_bytes:.0f} B"
