"""Requests of jobs follow from their work, are reasonable upper bounds, and are the same on every machine."""

import json
from pathlib import Path
from typing import Any

import pytest

from dithc.config import ExperimentConfig, load
from dithc.core.artifacts import Manifest
from dithc.core.logging import UserError
from dithc.workflow.jobs.sizing import SHARD_PART_BYTES, START_MINUTES, source_files
from dithc.workflow.workflow import Workflow

ROOT = Path(__file__).parents[3]
CLUSTER = {
    "launcher": "srun",
    "scheduler": "slurm",
    "nodes": 2,
    "ranks_per_node": 2,
    "cpus_per_rank": 2,
    "cpus_per_node": 4,
    "memory_per_node_mb": 10_000,
    "max_walltime_minutes": 60,
    "stop_before_walltime": True,
}


def workflow(name: str = "demo", **changes: Any) -> Workflow:
    experiment = load(ROOT / "config" / "experiments" / f"{name}.yaml").model_dump(mode="json")
    return Workflow(experiment | changes, cores=2)


STAGES = {"inputs": "synthesize", "scenes": "ingest", "codecs": "codec", "samples": "sample", "extractors": "extractor"}


@pytest.mark.slow
def test_memory_estimates_bound_the_peaks_of_all_demo_stages(finished: Path) -> None:
    estimate = Workflow(json.loads((finished / "results" / "demo" / "config.json").read_text()), cores=2)
    peaks: dict[tuple[str, str], int] = {}
    for path in (finished / "results" / "demo").rglob("manifest.json"):
        content = Manifest.read(path)
        stage = path.parent.parent.name
        name = content.name if stage != "features" else "landscape-classifier"
        peaks[STAGES.get(stage, stage), name] = content.host["peak_rss_bytes"]
    for path in (finished / "results" / "demo" / "runs").rglob("step_*.json"):
        peaks["train", path.parent.name] = Manifest.read(path).summary["peak_rss_bytes"]
    stages = ["synthesize", "ingest", "tiles", "codec", "latents", "train", "sample", "fid"]
    assert {stage for stage, _ in peaks} >= set(stages)
    for (stage, name), peak in peaks.items():
        memory = estimate.jobs.mem_mb(stage, name) * 1e6
        assert peak <= memory, f"{stage} {name} took {peak / 1e6:.0f} MB, its job asks for {memory / 1e6:.0f}"
        assert memory <= 12 * peak, f"{stage} {name} took {peak / 1e6:.0f} MB, its job asks for {memory / 1e6:.0f}"


def test_memory_of_a_large_training_run_is_near_the_measured_peak() -> None:
    measured = 5.00 * 2**30  # `dithc bench strategies --models B/2 --batches 16 --strategies cftp`, fp32, one rank
    blocking = {"machine": {"checkpoint_mode": "blocking"}}  # the bench writes no checkpoints
    estimate = Workflow(large(batch=16).model_dump(mode="json") | blocking, cores=2).jobs.mem_mb("train", "one") * 1e6
    assert measured <= estimate <= 2 * measured


def large(**run: Any) -> ExperimentConfig:
    """Training run of DiT-B/2 with 256 tokens."""
    dataset = {
        "title": "t",
        "source": {"kind": "image-folder", "path": "."},
        "tiles": {"size": 32},
        "rendering": {"bands": ["R", "G", "B"], "low": 0, "high": 255},
        "codec": "pixels",
    }
    training = {"dataset": "d", "model": {"preset": "DiT-B/2"}, "steps": 100}
    names = {"batch": "global_batch_size"}
    training |= {names.get(key, key): value for key, value in run.items()}
    return load({"datasets": {"d": dataset}, "codecs": {"pixels": {"kind": "pixel"}}, "runs": {"one": training}})


def test_training_memory_follows_model_batch_checkpointing_and_nodes() -> None:
    def memory(machine: dict[str, Any] | None = None, **run: Any) -> int:
        content = large(**run).model_dump(mode="json") | {"machine": machine or {}}
        return Workflow(content, cores=2).jobs.mem_mb("train", "one")

    assert memory(batch=64) > memory(batch=16)
    assert memory(batch=64, micro_batch_size=8) < memory(batch=64)
    assert memory(batch=64, activation_checkpointing="block") < memory(batch=64)
    assert memory(batch=64, model={"preset": "DiT-XL/2"}) > memory(batch=64)
    assert memory({"checkpoint_mode": "blocking"}, batch=64) < memory(batch=64)
    assert memory({**CLUSTER, "nodes": 4}, batch=64) < memory({**CLUSTER, "nodes": 2}, batch=64)


@pytest.mark.parametrize("is_file", [False, True])
def test_memory_for_archived_images_is_independent_of_archive_size(tmp_path: Path, is_file: bool) -> None:
    for name, size in {"train.tar": 2**40, "notes.txt": 1000}.items():
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    content = large().model_dump(mode="json")
    content["datasets"]["d"]["source"]["path"] = str(tmp_path / "train.tar" if is_file else tmp_path)
    found = source_files(load(content).datasets["d"].source.path)
    assert found == (1 if is_file else 2, 2**40 + (0 if is_file else 1000), SHARD_PART_BYTES)


def test_sampling_memory_includes_the_guidance_network() -> None:
    def memory(**evaluation: Any) -> int:
        content = large().model_dump(mode="json")
        content["runs"]["one"] |= {"checkpoint_every": 1, "keep_every": 1}
        content["runs"]["one"]["model"] = {"preset": "DiT-XL/2"}
        content["extractors"] = {"e": {"kind": "squeezenet", "path": "e.pt"}}
        content["evaluations"] = {
            "x": {"run": "one", "extractor": "e", "batch_size": 1, "guidance_scale": 2.0, **evaluation}
        }
        return Workflow(content, cores=2).jobs.mem_mb("sample", "x")

    weights = 675e6 * 4 / 1e6
    assert memory(guidance_reference=1) - memory() > weights


def test_job_requests_are_equal_in_the_driver_and_in_jobs() -> None:
    experiment = load(ROOT / "config" / "experiments" / "demo.yaml").model_dump(mode="json") | {"machine": CLUSTER}
    driver, inside = Workflow(experiment, cores=None).jobs, Workflow(experiment, cores=64).jobs
    for stage in ("codec", "train", "latents", "features", "bench"):
        assert driver.threads(stage) == inside.threads(stage) == 4
    assert driver.launch("train", "pretrain") == inside.launch("train", "pretrain")
    assert (driver.tasks, driver.tasks_per_node, driver.rank_cpus) == (0, 2, 2)


def test_oversized_job_raises_an_error_and_overlong_job_returns_a_note() -> None:
    with pytest.raises(UserError) as error:
        workflow(machine=CLUSTER, resources={"train": {"mem_mb": 50_000}}).jobs.check([("train", "pretrain")])
    assert "50000 MB of memory (`resources.train.mem_mb`), a node has 10000 MB" in str(error.value)
    notes = workflow(machine={**CLUSTER, "gflops_per_core": 0.01}).jobs.check([("train", "pretrain")])
    assert "it continues in further jobs" in notes[0]


def test_workers_of_local_updates_need_cores_at_the_same_time() -> None:
    plain = load(ROOT / "config" / "experiments" / "demo.yaml").model_dump(mode="json")["runs"]["pretrain"]
    changes = {"steps": 160, "steps_per_job": None, "local_updates": {"workers": ["a", "b"], "steps": 16}}
    runs = dict.fromkeys(("a", "b"), plain | changes)
    empty: dict[str, Any] = {"evaluations": {}, "restorations": {}}
    with pytest.raises(UserError, match="workers of local updates on this machine: a, b"):
        workflow(runs=runs, **empty).jobs.check_workers(["a", "b"])
    workflow(runs=runs, **empty).jobs.check_workers(["b"])
    workflow(runs=runs, machine={"ranks_per_node": 1, "cpus_per_rank": 1}, **empty).jobs.check_workers(["a", "b"])


def test_short_grouped_jobs_return_no_walltime_note() -> None:
    jobs = workflow(machine=CLUSTER).jobs
    assert 5 * jobs.runtime("features", "landscape-classifier") + jobs.runtime("fid") <= 60, "4 evaluations in a job"
    assert jobs.check([("fid", next(iter(jobs.experiment.evaluations)))]) == []
    (note,) = workflow(machine={**CLUSTER, "gflops_per_core": 1e-6}).jobs.check([("codec", "landscape-vae")])
    assert "the scheduler may end it early" in note


def test_set_walltime_is_reduced_only_with_a_note_and_by_jobs_of_its_group() -> None:
    machine = CLUSTER | {"cpus_per_node": 152, "max_walltime_minutes": 1440, "memory_per_node_mb": 500_000}
    resources = {"latents": {"runtime": 1440}}
    jobs = workflow("sentinel2", machine=machine, resources=resources).jobs
    assert jobs.runtime("latents", "sentinel2") == 1440, "the codec is not trained"
    jobs = workflow("sentinel2", machine=machine, resources={"features": {"runtime": 720, "cpus": 32}}).jobs
    (note,) = jobs.check([("features", "inception")] * 2)
    granted = jobs.runtime("features", "inception")
    assert f"requests {granted} of resources.features.runtime 720" in note
    assert 300 < granted <= 1440 // 4, "one after the other"
    resources = {"codec": {"runtime": 40}, "latents": {"runtime": 40}}
    jobs = workflow(machine=CLUSTER, resources=resources).jobs
    assert jobs.runtime("codec", "sentinel2-vae") == jobs.runtime("latents", "sentinel2") == 30


def test_invisible_source_requests_the_limit_or_the_size_of_its_ingested_scenes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    machine = CLUSTER | {"memory_per_node_mb": 50_000}
    jobs = workflow("sentinel2", machine=machine, resources={}).jobs
    assert jobs.runtime("ingest", "sentinel2") + jobs.runtime("tiles", "sentinel2") == 60
    (note,) = jobs.check([("ingest", "sentinel2"), ("latents", "sentinel2")])
    assert "not visible here: ingest sentinel2, latents sentinel2 request up to 60 minutes" in note
    folder = tmp_path / "results/sentinel2/scenes/sentinel2"
    folder.mkdir(parents=True)
    files = [{"path": "scenes.npy", "bytes": 20 * 60 * 10**6}]
    (folder / "manifest.json").write_text(json.dumps({"summary": {"scenes": 3}, "files": files}))
    jobs = workflow("sentinel2", machine=machine, resources={}).jobs
    assert jobs.runtime("ingest", "sentinel2") == START_MINUTES + 4
    assert jobs.check([("ingest", "sentinel2")]) == []


def test_scheduler_without_sufficient_cpus_per_node_is_rejected() -> None:
    with pytest.raises(UserError, match=r"requires machine\.cpus_per_node"):
        load({"machine": {"launcher": "srun", "ranks_per_node": 1, "scheduler": "slurm"}})
    with pytest.raises(UserError, match=r"is more than machine\.cpus_per_node 4"):
        load({"machine": {**CLUSTER, "ranks_per_node": 4}})
