"""Settings and results: the digest that names them, and their difference."""

import hashlib
import json

DIGEST_LENGTH = 12
MAX_ENTRIES, MAX_CHARACTERS = 8, 60


def digest(spec: object) -> str:
    """Return the first 12 hex digits of the SHA-256 of a JSON value in canonical form (sorted keys, no spaces)."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def difference(before: object, now: object) -> str:
    """Return the first differing entries of nested mappings of JSON values as `key: before -> now`; empty for none."""
    old, new = _leaves(before), _leaves(now)
    keys = [key for key in sorted({*old, *new}) if old.get(key, "absent") != new.get(key, "absent")]
    entries = [
        f"{key}: " + " -> ".join(f"{values.get(key, 'absent')}"[:MAX_CHARACTERS] for values in (old, new))
        for key in keys[:MAX_ENTRIES]
    ]
    return "; ".join(entries + [f"{len(keys) - MAX_ENTRIES} more"] * (len(keys) > MAX_ENTRIES))


def _leaves(value: object, path: str = "") -> dict[str, object]:
    if not isinstance(value, dict) or (path and not value):
        return {path: value}
    return {key: leaf for name in value for key, leaf in _leaves(value[name], f"{path}.{name}".lstrip(".")).items()}
