"""Tests of `dithc simulate`: reproducible curves for the same settings, and rejection of invalid settings."""

import json
from pathlib import Path

import pytest

from dithc.cli import main
from dithc.engine.hardware import description

LX2 = Path(__file__).parents[3] / "profiles/machines/lx2.yaml"
NETWORK = """
network: {source: assumed, cards_per_node: 1, bandwidth: 1.25e+9, latency_ns: 20000, overhead_ns: 2000, gap_ns: 500,
          core_bandwidth: 2.0e+9, memory_bandwidth: 4.0e+9, memory_latency_ns: 300}
"""
CLUSTER = "model_name: a cluster\nclusters: [{cores: 0-3}]\n" + NETWORK


def simulate(*arguments: str, machine: Path = LX2) -> int:
    return main(["simulate", "--machine", str(machine), "--steps", "4", *arguments])


@pytest.fixture
def cluster(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    return path


def test_equal_settings_write_identical_files(tmp_path, capsys):
    files = [tmp_path / name for name in ("a.json", "b.json")]
    for file in files:
        arguments = ["--model", "DiT-S/2", "--nodes", "1,4,1024", "--wire", "fp32,bf16", "--json", str(file)]
        assert simulate(*arguments) == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    content = json.loads(files[0].read_text())
    assert [curve["label"] for curve in content["curves"]] == [
        f"dithc: hierarchical, {w} wire" for w in ("fp32", "bf16")
    ]
    assert all(curve["kind"] == "simulated" for curve in content["curves"])
    first, *_, last = content["curves"][0]["points"]
    assert (first["nodes"], first["ranks"], first["efficiency"]) == (1, 4, 1.0)
    assert (last["nodes"], last["ranks"]) == (1024, 4096)
    assert last["efficiency"] < 1
    assert content["machine"]["network"]["cards_per_node"] == 4
    assert content["inputs"]["models"]["DiT-S/2"]["computing"]["seconds"] == 2.48
    assert "published" in content["inputs"]["models"]["DiT-S/2"]["source_of_computing"]
    assert "1024" in capsys.readouterr().out


def test_each_model_has_a_separate_step_time_and_curve(tmp_path):
    file = tmp_path / "models.json"
    assert simulate("--models", "DiT-S/2,DiT-XL/2", "--nodes", "1,16", "--json", str(file)) == 0
    content = json.loads(file.read_text())
    assert [curve["model"] for curve in content["curves"]] == ["DiT-S/2", "DiT-XL/2"]
    small, large = (content["inputs"]["models"][name] for name in ("DiT-S/2", "DiT-XL/2"))
    assert small["gradient_bytes"] < large["gradient_bytes"]
    assert [curve["points"][0]["seconds"] for curve in content["curves"]] == [
        pytest.approx(one["computing"]["seconds"], rel=0.1) for one in (small, large)
    ]


def test_strong_scaling_has_a_curve_per_batch_and_omits_excess_nodes(tmp_path):
    file = tmp_path / "strong.json"
    arguments = ["--scaling", "strong", "--global-batch-size", "64,4096", "--nodes", "1,16,64", "--model", "DiT-S/2"]
    assert simulate(*arguments, "--json", str(file)) == 0
    nodes = {c["global_batch_size"]: [p["nodes"] for p in c["points"]] for c in json.loads(file.read_text())["curves"]}
    assert nodes == {64: [1, 16], 4096: [1, 16, 64]}


@pytest.mark.parametrize("bench", ["step", "scaling"])
def test_measured_step_is_extrapolated_to_more_nodes(tmp_path, cluster, bench):
    step, file = tmp_path / "bench.json", tmp_path / "out.json"
    settings = {"model": "DiT-S/2", "batch": 8, "dtype": "fp32", "overrides": {}}
    row = {"name": "dithc", "status": "ok", "seconds": {"median": 2.0}}
    point = {"status": "ok", "nodes": 1, "ranks": 2, "oversubscribed": False, "seconds": 2.25, "exposed_seconds": 0.25}
    content = {
        "step": {"variants": [row]},
        "scaling": {"curves": [{"model": "DiT-S/2", "points": [{**point, "images": 8}]}]},
    }[bench]
    step.write_text(json.dumps({"bench": bench, "settings": settings, **content}))
    arguments = ["--model", "DiT-S/2", "--nodes", "1,8", "--step", str(step), "--json", str(file)]
    assert simulate(*arguments, machine=cluster) == 0
    measured, simulated = json.loads(file.read_text())["curves"]
    assert (measured["kind"], simulated["kind"]) == ("measured", "simulated")
    assert measured["points"][0]["seconds"] == (2.0 if bench == "step" else 2.25)
    alone, eight = simulated["points"]
    assert (alone["seconds"], alone["exposed_seconds"], alone["ranks"]) == (pytest.approx(2.0), 0.0, 1)
    assert eight["seconds"] > 2.0
    assert eight["images_per_step"] == 64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "0,1"], "--nodes"),
        (["--steps", "0"], "--steps"),
        (["--step", "-3"], "--step"),
        (["--step", "nan"], "--step"),
        (["--step", "2.5", "--models", "DiT-S/2,DiT-XL/2"], "seconds of one model"),
        (["--models", "DiT-S/2,DiT-S/2"], "--models"),
        (["--stragglers", "2"], "--stragglers"),
        (["--fixed-step-seconds", "20"], "--fixed-step-seconds"),
        (["--bucket-mb", "0"], "--bucket-mb"),
        (["--collectives", "tree"], "--collectives"),
        (["--wire", "fp8"], "--wire"),
        (["--ranks-per-node", "0"], "--ranks-per-node"),
        (["--images-per-node", "100"], "add --step"),
        (["--model", "DiT-M/2"], "DiT-M/2"),
        (["--model", "DiT-S/2", "--scaling", "strong", "--global-batch-size", "3"], "no point can be simulated"),
        (["--model", "DiT-S/2", "--reproduce-paper"], "--reproduce-paper"),
        (["--step", "nowhere.json"], "nowhere.json"),
    ],
)
def test_invalid_arguments_are_rejected_by_name(arguments, message, capsys):
    assert simulate(*arguments) == 2
    text = capsys.readouterr().err
    assert message in text
    assert "Traceback" not in text


def test_step_file_of_a_different_bench_is_rejected(tmp_path, cluster, capsys):
    other = tmp_path / "other.json"
    other.write_text('{"bench": "ops"}')
    assert simulate("--step", str(other), machine=cluster) == 2
    assert "contains no step time" in capsys.readouterr().err


def test_machine_without_network_is_rejected(tmp_path, capsys):
    path = tmp_path / "lonely.yaml"
    path.write_text("clusters: [{cores: 0-3}]\n")
    assert simulate("--step", "1", machine=path) == 2
    assert "section `network`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "key"), [("1.25e+9", "0", "bandwidth"), ("node: 1,", "node: 0,", "cards_per_node")]
)
def test_invalid_network_values_are_rejected_by_key(cluster, capsys, old, new, key):
    cluster.write_text(CLUSTER.replace(old, new))
    assert simulate("--step", "1", machine=cluster) == 2
    assert f"network.{key}" in capsys.readouterr().err


def test_network_description_survives_a_yaml_round_trip(cluster, tmp_path):
    machine = description.read(cluster)
    (tmp_path / "again.yaml").write_text(description.to_yaml(machine))
    assert description.read(tmp_path / "again.yaml") == machine
    assert machine.network is not None


@pytest.mark.slow
def test_reproduce_paper_prints_published_and_simulated_scaling(tmp_path, capsys):
    file = tmp_path / "paper.json"
    assert simulate("--reproduce-paper", "--nodes", "1,256", "--json", str(file)) == 0
    content = json.loads(file.read_text())
    assert {curve["kind"] for curve in content["curves"]} == {"published", "simulated"}
    assert {curve["mode"] for curve in content["curves"]} == {"weak", "strong"}
    assert content["validation"]["efficiency"]["within"]
    assert set(content["inputs"]["fitted"]) == {"exposed", "tuned kernels"}
    out = capsys.readouterr().out
    assert "published against simulated" in out
    assert "published: DiT-HC, authors' logs" in out


def test_local_updates_hide_the_exchange_of_a_slow_network(cluster, tmp_path):
    file = tmp_path / "local.json"
    arguments = [
        "--model",
        "DiT-S/2",
        "--step",
        "2.0",
        "--nodes",
        "1,2,1024",
        "--local-steps",
        "16",
        "--json",
        str(file),
    ]
    assert simulate(*arguments, machine=cluster) == 0
    summed, local = json.loads(file.read_text())["curves"]
    assert [point["exposed_seconds"] for point in local["points"][:2]] == [0.0, 0.0]
    assert summed["points"][1]["exposed_seconds"] > 0.0
    # Each of 1,024 workers reads the bf16 updates of all others in 16 steps.
    seconds = 1024 * 2 * 33_000_000 / 1.25e9 / 16
    assert local["points"][2]["seconds"] == pytest.approx(seconds, rel=0.7)
    assert simulate("--local-steps", "0", machine=cluster) == 2
