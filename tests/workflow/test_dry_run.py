"""Every experiment plans its jobs on every profile, without data; mistakes stop before the first job."""

from pathlib import Path
from textwrap import dedent

import pytest

from tests.workflow.conftest import DEMO, ROOT, snakemake

EXPERIMENTS = sorted(path.stem for path in (ROOT / "config" / "experiments").glob("*.yaml"))


@pytest.mark.sampled
@pytest.mark.parametrize("profile", ["profiles/local", "cluster"])
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_experiment_dry_runs(project: Path, experiment: str, profile: str) -> None:
    done = snakemake(project, "--profile", profile, "--configfile", f"config/experiments/{experiment}.yaml", "-n")
    assert done.returncode == 0, done.stdout[-3000:]
    for rule in ("stage", "tiles", "latents", "sample", "features_real", "features_generated", "fid", "report"):
        assert f"\n{rule} " in done.stdout
    lacks = experiment not in ("demo", "quality", "paper-ci", "paper-node")
    assert ("a run of this plan would stop before its first job: input of experiment" in done.stdout) == lacks


def test_without_a_config_file_the_demo_is_planned(project: Path) -> None:
    done = snakemake(project, "--profile", "cluster", "-n")
    assert done.returncode == 0
    assert "results/demo/report.html" in done.stdout


def test_another_workflow_imports_this_one_as_a_module(project: Path) -> None:
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


def test_profile_decides_ranks_and_no_result(project: Path) -> None:
    (project / "mine.yaml").write_text("machine: {cpus_per_rank: 2, weights_wire: bf16}\n")
    own = ["--configfile", DEMO, "mine.yaml", "--config", "machine={ranks_per_node: 2}"]
    done = snakemake(project, "--profile", "cluster", "-n", "-p", *own)
    assert "--launcher srun --nodes 1 --ranks 2 --cpus 38" in done.stdout
    assert "machine.cpus_per_rank: 38 (cluster/config.yaml) overrides 2 (mine.yaml)" in done.stdout
    assert "machine.ranks_per_node: 2 (the command line) overrides 4 (cluster/config.yaml)" in done.stdout
    assert done.returncode == 0


def test_missing_data_stops_before_the_first_job_and_says_where_to_put_it(project: Path) -> None:
    done = snakemake(project, "--profile", "profiles/local", "--configfile", "config/experiments/gaofen2.yaml")
    assert done.returncode != 0
    for word in ("datasets.gaofen2.source.path: data/gaofen2", "extractors.inception.path", "fix:"):
        assert word in done.stdout
    assert not (project / "results" / "gaofen2" / "scenes").exists()


def test_unknown_key_stops_before_the_first_job(project: Path) -> None:
    done = snakemake(project, "--profile", "profiles/local", "--config", "learning_rate=1", "runs={a: {dataset: b}}")
    assert done.returncode != 0
    assert "learning_rate: unknown key" in done.stdout


def test_failing_verb_fails_its_rule_with_its_own_words(project: Path) -> None:
    (project / "pictures" / "a").mkdir(parents=True)
    (project / "pictures" / "a" / "0.jpg").write_bytes(b"no picture")
    source = "datasets: {landscape: {source: {synthetic: null, path: pictures}}}"
    (project / "mine.yaml").write_text(source)
    demo = "config/experiments/demo.yaml"
    target = "results/demo/scenes/landscape/manifest.json"
    done = snakemake(project, target, "--profile", "profiles/local", "--configfile", demo, "mine.yaml")
    assert done.returncode != 0
    assert "fix:" in done.stdout
    assert "completed successfully" not in done.stdout


def test_cluster_profile_asks_for_one_task_a_rank_with_its_own_cores(project: Path) -> None:
    planned = snakemake(project, "--profile", "cluster", "-n").stdout
    training = planned.partition("rule pretrain:")[2].partition("\n[")[0]
    assert "tasks=0, tasks_per_node=4, cpus_per_task=38" in training.replace("nodes=1, ", ""), "as many on every node"


def test_only_what_the_asked_stage_reads_must_be_there(project: Path) -> None:
    folder = project / "data" / "gaofen2"
    folder.mkdir(parents=True)
    target = "results/gaofen2/scenes/gaofen2/manifest.json"
    gaofen2 = "config/experiments/gaofen2.yaml"
    done = snakemake(project, target, "--profile", "profiles/local", "--configfile", gaofen2)
    assert "init_file" not in done.stdout, "staging needs no weights"
    assert done.returncode != 0
    assert "fix:" in done.stdout


def test_misspelt_section_is_refused_and_never_becomes_the_demo(project: Path) -> None:
    (project / "mine.yaml").write_text("name: mine\nrnus: {a: {dataset: b}}\n")
    done = snakemake(project, "--profile", "profiles/local", "-n", "--configfile", "mine.yaml")
    assert done.returncode != 0
    assert (
        "rnus (line 2, column 1 of configuration file mine.yaml): unknown key; did you mean `runs`?"
        in done.stdout.replace(f"{project}/", "")
    )
