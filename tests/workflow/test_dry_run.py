"""Every experiment plans its jobs on every profile, without data; mistakes stop before the first job."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.workflow.conftest import DEMO, REDUCED, ROOT, snakemake

EXPERIMENTS = sorted(path.stem for path in (ROOT / "config" / "experiments").glob("*.yaml"))


@pytest.mark.sampled
@pytest.mark.parametrize("profile", ["profiles/local", "cluster"])
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiment_dry_run_plans_all_stages(project: Path, experiment: str, profile: str) -> None:
    done = snakemake(project, "--profile", profile, "--configfile", f"config/experiments/{experiment}.yaml", "-n")
    lacks = experiment not in ("demo", "quality", "paper-ci", "paper-node", "restore-demo")
    assert done.returncode == lacks, done.stdout[-3000:]
    scored = (
        ("sample", "features_real", "features_generated", "fid")
        if "\nrestorations:" not in (ROOT / f"config/experiments/{experiment}.yaml").read_text()
        else ("restore",)
    )
    for rule in ("ingest", "tiles", "latents", *scored, "report"):
        assert f"\n{rule} " in done.stdout
    assert ("a run of this plan would stop before its first job: input of experiment" in done.stdout) == lacks


def test_workflow_is_importable_as_a_snakemake_module(project: Path) -> None:
    text = (ROOT / "docs/workflow.md").read_text()
    block = (
        text[text.index("    configfile: ") : text.index("    use rule * from dithc\n")] + "    use rule * from dithc\n"
    )
    block = dedent(block).replace("/path/to/dithc", str(ROOT))
    (project / "other.smk").write_text(block)
    target = "results/demo/tiles/sentinel2/manifest.json"
    done = snakemake(project, "--snakefile", "other.smk", "--profile", "profiles/local", "-n", target)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "\ntiles " in done.stdout


def test_reduced_demo_is_planned_in_a_separate_directory(project: Path, tmp_path: Path) -> None:
    files = ("--profile", "profiles/local", "--configfile", DEMO, str(REDUCED))
    done = snakemake(project, "--directory", str(tmp_path), *files, "-n")
    assert done.returncode == 0, done.stdout[-3000:]
    assert "\nreport " in done.stdout


def test_profile_sets_ranks_and_overrides_are_reported(project: Path) -> None:
    (project / "mine.yaml").write_text("machine: {cpus_per_rank: 2, param_gather_dtype: bf16}\n")
    settings = ["--configfile", DEMO, "mine.yaml", "--config", "machine={ranks_per_node: 2}"]
    done = snakemake(project, "--profile", "cluster", "-n", "-p", *settings)
    assert "--launcher srun --nodes 1 --ranks 2 --cpus-per-rank 38" in done.stdout
    assert "machine.cpus_per_rank: 38 (cluster/config.yaml) overrides 2 (mine.yaml)" in done.stdout
    assert "machine.ranks_per_node: 2 (the command line) overrides 4 (cluster/config.yaml)" in done.stdout
    assert done.returncode == 0


def test_demo_on_a_cluster_requests_one_task_per_rank(project: Path) -> None:
    planned = snakemake(project, "--profile", "cluster", "-n").stdout
    assert "results/demo/report.html" in planned, "the demo is planned without a configuration file"
    training = planned.partition("rule pretrain:")[2].partition("\n[")[0]
    assert "tasks=0, tasks_per_node=4, cpus_per_task=38" in training.replace("nodes=1, ", ""), "as many on every node"


def test_unknown_targets_are_reported_with_the_closest_targets(project: Path) -> None:
    near = {
        "all_sample": "all_samples",
        "results/demo/tiles/sentinel2": "results/demo/tiles/sentinel2/manifest.json",
        "results/demo/tiles/sentinel3/manifest.json": "results/demo/tiles/sentinel2/manifest.json",
        "sample": "all_samples",  # a rule with wildcards
        "reduced.yaml": "all",
    }
    dithc = str(Path(sys.executable).parent / "dithc")
    line = [dithc, "run", "--profile", "profiles/local", "--configfile", "reduced.yaml", "--", *near, "all_tiles"]
    done = subprocess.run(line, cwd=project, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode != 0
    assert "Exception" not in done.stdout
    assert done.stdout.count("unknown target of the run\n") == len(near)
    for target, expected in near.items():
        message = done.stdout.partition(f"got:      {target}\n")[2].splitlines()
        assert expected in message[0].partition("expected: ")[2].split(", ")
        assert "fix:" in message[1]
    assert "fix:      add `--configfile reduced.yaml`\n" in done.stdout
