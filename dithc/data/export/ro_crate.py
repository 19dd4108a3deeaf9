"""Workflow Run RO-Crate of an experiment, from the hashes in its manifests.

The crate is the result folder itself: `ro-crate-metadata.json` describes the files that are already there. Profiles: Workflow Run
Crate 0.5 and Process Run Crate 0.5, https://w3id.org/ro/wfrun. No file is hashed again.
"""

import json
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dithc.core.artifacts import Manifest, outputs
from dithc.core.logging import user_error

METADATA, WORKFLOW = "ro-crate-metadata.json", "ro-crate-workflow.smk"
CONTEXT = ["https://w3id.org/ro/crate/1.1/context", "https://w3id.org/ro/terms/workflow-run/context"]
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
LICENSE = "https://spdx.org/licenses/Apache-2.0"
LICENSE_OF_DATA = "The license of the data is not recorded. Add it before you publish the crate."
MEDIA = {
    ".json": "application/json",
    ".png": "image/png",
    ".html": "text/html",
    ".npy": "application/x-npy",
    ".parquet": "application/vnd.apache.parquet",
}
Entity = dict[str, Any]


def write_ro_crate(folder: Path, *, workflow: Path) -> tuple[Path, int]:
    """Write the metadata of a crate and a copy of the workflow into a result folder.

    Args:
        folder: results/NAME of an experiment.
        workflow: Snakefile of the experiment.

    Returns:
        The metadata file and the number of described files.

    Raises:
        UserError: the folder has no manifests, or a file of the crate's names exists that dithc did not write.
    """
    paths = sorted([*folder.glob("*/*/manifest.json"), *folder.glob("runs/*/step_*.json")])
    if not paths:
        raise user_error(
            f"{folder} is not a result folder",
            got="no manifests",
            expected="results/NAME with the manifest of at least one stage",
            fix="name the result folder of an experiment, or run the experiment first",
        )
    for name in (METADATA, WORKFLOW):
        outputs.check_file(folder / name)
    graph, count = describe(folder, {path: Manifest.read(path) for path in paths})
    outputs.write(folder / WORKFLOW, workflow.read_bytes())
    outputs.write(folder / METADATA, json.dumps({"@context": CONTEXT, "@graph": graph}, indent=1) + "\n")
    return folder / METADATA, count


def describe(folder: Path, manifests: dict[Path, Manifest]) -> tuple[list[Entity], int]:
    """Return the entities of the crate at `folder`, and the number of files among them."""
    files: dict[str, Entity] = {}
    for path, manifest in manifests.items():
        for entry in ({"path": path.name, "bytes": path.stat().st_size}, *manifest.files):
            file = (path.parent / entry["path"]).resolve()
            if file.is_relative_to(folder.resolve()):  # Checkpoints are in the store, outside the crate.
                name = file.relative_to(folder.resolve()).as_posix()
                files[name] = file_entity(name, entry)
    config = "config.json"
    if (folder / config).exists():
        files[config] = file_entity(config, {"bytes": (folder / config).stat().st_size})
    versions = {manifest.stage: manifest.code["version"] for manifest in reversed(manifests.values())}
    stages = sorted(versions)
    tools = [
        {"@id": f"#{s}", "@type": "SoftwareApplication", "name": f"dithc {s}", "softwareVersion": versions[s]}
        for s in stages
    ]
    actions = [action_of(path, manifest, folder=folder, files=files) for path, manifest in manifests.items()]
    end = max(manifest.created_at for manifest in manifests.values())
    run = {
        "@id": "#run",
        "@type": "CreateAction",
        "name": f"Run of the experiment {folder.name}",
        "instrument": {"@id": WORKFLOW},
        "endTime": end,
        "object": references([config] if config in files else []),
        "result": references(files),
    }
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": f"dithc experiment {folder.name}",
        "description": f"Results of the dithc experiment {folder.name}: " + ", ".join(stages) + ".",
        "datePublished": end,
        "license": {"@id": "#license"},
        "conformsTo": references(PROFILES),
        "mainEntity": {"@id": WORKFLOW},
        "hasPart": references([WORKFLOW, *files]),
        "mentions": references(["#run", *(action["@id"] for action in actions)]),
    }
    return [*fixed_entities(), root, run, *tools, *actions, *files.values()], len(files)


def fixed_entities() -> list[Entity]:
    """Return the entities that are the same for every experiment: metadata file, profiles, workflow, licenses, language."""
    snakemake = "https://w3id.org/workflowhub/workflow-ro-crate#snakemake"
    return [
        {
            "@id": METADATA,
            "@type": "CreativeWork",
            "about": {"@id": "./"},
            "conformsTo": references(
                ["https://w3id.org/ro/crate/1.1", "https://w3id.org/workflowhub/workflow-ro-crate/1.0"]
            ),
        },
        *({"@id": url, "@type": "CreativeWork", "name": name, "version": url[-3:]} for url, name in PROFILES.items()),
        {
            "@id": WORKFLOW,
            "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow"],
            "name": "dithc",
            "version": version("dithc"),
            "encodingFormat": "text/x-python",
            "license": {"@id": LICENSE},
            "programmingLanguage": {"@id": snakemake},
        },
        {"@id": LICENSE, "@type": "CreativeWork", "name": "Apache License 2.0"},
        {"@id": "#license", "@type": "CreativeWork", "name": "License of the data", "description": LICENSE_OF_DATA},
        {
            "@id": snakemake,
            "@type": "ComputerLanguage",
            "name": "Snakemake",
            "identifier": {"@id": "https://doi.org/10.1093/bioinformatics/bts480"},
            "url": {"@id": "https://snakemake.readthedocs.io"},
        },
    ]


def action_of(path: Path, manifest: Manifest, *, folder: Path, files: dict[str, Entity]) -> Entity:
    """Return the action that produced the files of a manifest; inputs outside the crate are left out."""
    root = folder.resolve()
    written = [(path.parent / entry["path"]).resolve() for entry in ({"path": path.name}, *manifest.files)]
    inputs = [Path(name).resolve() for name in manifest.inputs]
    # Input paths are relative to the folder in which the experiment ran, usually two levels above its results.
    inputs += [(root.parents[1] / name).resolve() for name in manifest.inputs]
    objects, results = (
        sorted(files.keys() & {path.relative_to(root).as_posix() for path in group if path.is_relative_to(root)})
        for group in (inputs, written)
    )
    return {
        "@id": f"#{manifest.stage}/{manifest.name}/{path.stem}",
        "@type": "CreateAction",
        "name": f"{manifest.stage} {manifest.name}",
        "description": f"Stage {manifest.stage} of {manifest.name}, "
        f"{manifest.wall_seconds:.1f} s on {manifest.host.get('name')}.",
        "instrument": {"@id": f"#{manifest.stage}"},
        "endTime": manifest.created_at,
        "object": references(objects),
        "result": references(results),
    }


def file_entity(name: str, entry: dict[str, Any]) -> Entity:
    """Return the entity of a file, with size and hash as far as the manifest has them."""
    entity: Entity = {"@id": name, "@type": "File", "name": name, "contentSize": str(entry["bytes"])}
    entity["encodingFormat"] = MEDIA.get(Path(name).suffix, "application/octet-stream")
    return entity | ({"sha256": entry["sha256"]} if "sha256" in entry else {})


def references(names: Iterable[str]) -> Any:
    """Return references to entities: a list, or the reference itself if there is only one."""
    entities = [{"@id": name} for name in names]
    return entities[0] if len(entities) == 1 else entities
