"""Check of installed extensions: samplers, sources, codecs, extractors and conditions."""

from collections import Counter
from pathlib import Path

from dithc.config import datasets
from dithc.core import plugins as extensions
from dithc.core.logging import UserError
from dithc.engine.doctor.finding import CheckResult, Level
from dithc.engine.hardware import Machine


def extensions_of_packages(_: Machine, __: Path) -> list[CheckResult]:
    """List the installed extensions and their faults; empty without extensions."""
    lines, faults = list[str](), list[str]()
    for group in extensions.GROUPS:
        base, built_in = datasets.REGISTERED[group]
        found = extensions.list_plugins(group)
        times = Counter(one.name for one in found)
        for one in found:
            lines.append(f"{group}: {one}, {one.target}")
            if one.name in built_in:
                faults.append(f"{one} of {group} is never used: the name is built in")
            elif times[one.name] > 1:
                faults.append(f"{one} of {group} cannot be used: several packages provide this name")
            else:
                try:
                    base.brought(one)
                except UserError as error:
                    faults.append(" ".join(str(error).split()))
    if not lines:
        return []
    fix = "correct or uninstall these packages; configurations that do not name them are unaffected" if faults else ""
    level: Level = "warn" if faults else "ok"
    facts = {"extensions": lines, "faults": faults}
    return [CheckResult(level, "extensions", "\n".join([*faults, *lines]), fix=fix, facts=facts)]
