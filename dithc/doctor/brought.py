"""Check of extensions from installed packages: samplers, sources, codecs, extractors, conditions."""

from collections import Counter
from pathlib import Path
from typing import get_args

from dithc import extensions
from dithc.config import codecs, datasets, training
from dithc.doctor.finding import Finding
from dithc.hardware import Machine
from dithc.log import UserError

BASES: dict[extensions.Group, type[datasets.Installed]] = {
    "samplers": training.InstalledSampler,
    "sources": datasets.InstalledSource,
    "codecs": codecs.InstalledCodec,
    "extractors": codecs.InstalledExtractor,
    "conditions": datasets.InstalledConditions,
}
BUILT_IN: dict[extensions.Group, tuple[str, ...]] = {
    "samplers": get_args(training.BuiltInSampler),
    "sources": datasets.kinds_of(datasets.BuiltInSource),
    "codecs": datasets.kinds_of(codecs.BuiltInCodec),
    "extractors": get_args(codecs.ExtractorKind),
    "conditions": (),
}


def extensions_of_packages(_: Machine, __: Path) -> list[Finding]:
    """List the extensions, their packages and faults; empty without extensions."""
    lines, faults = list[str](), list[str]()
    for group, base in BASES.items():
        found = extensions.installed(group)
        times = Counter(one.name for one in found)
        for one in found:
            lines.append(f"{group}: {one}, {one.target}")
            if one.name in BUILT_IN[group]:
                faults.append(f"{one} of {group} is never used: dithc has a built-in with this name")
            elif times[one.name] > 1:
                faults.append(f"{one} of {group} cannot be used: several packages provide this name")
            else:
                faults += _faults(one, base)
    if not lines:
        return []
    facts = {"extensions": lines, "faults": faults}
    if not faults:
        return [Finding(level="ok", topic="extensions", text="\n".join(lines), facts=facts)]
    fix = "repair or uninstall these packages; other parts of dithc are not affected"
    return [Finding(level="warn", topic="extensions", text="\n".join([*faults, *lines]), fix=fix, facts=facts)]


def _faults(one: extensions.Extension, base: type[datasets.Installed]) -> list[str]:
    try:
        base.brought(one)
    except UserError as error:
        return [" ".join(str(error).split())]
    return []
