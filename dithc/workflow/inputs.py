"""Whether the user's files are there, before the first job."""

from collections.abc import Set
from pathlib import Path

from dithc.config import Experiment
from dithc.log import problem


def check_inputs(experiment: Experiment, rules: Set[str]) -> None:
    """Checks before the first job that the user's files are there.

    Args:
        experiment: the configuration.
        rules: names of the rules that will run; only what they read is checked.

    Raises:
        UserError: a path of a data set, codec, extractor or initial checkpoint does not exist; all are named.
    """
    wanted: dict[str, str | None] = {}
    if "stage" in rules:
        wanted |= {f"datasets.{name}.source.path": one.source.path for name, one in experiment.datasets.items()}
        wanted |= {
            f"datasets.{name}.source.dem": getattr(one.source, "dem", None) for name, one in experiment.datasets.items()
        }
    if rules & {"latents", "sample"}:
        wanted |= {f"codecs.{name}.path": getattr(one, "path", None) for name, one in experiment.codecs.items()}
    if rules & {"features_real", "features_generated"}:
        wanted |= {f"extractors.{name}.path": one.path for name, one in experiment.extractors.items()}
    if rules & {"pretrain", "finetune"}:
        wanted |= {f"runs.{name}.init_file": one.init_file for name, one in experiment.runs.items()}
    if "simulate_scaling" in rules:
        simulate = experiment.bench.simulate
        wanted |= {"bench.simulate.machine": simulate.machine, "bench.simulate.step": simulate.step}
    missing = [f"{key}: {path}" for key, path in wanted.items() if path is not None and not Path(path).exists()]
    if missing:
        raise problem(
            f"input of experiment {experiment.name!r} is not on this machine",
            got="no such file or folder for" + "".join(f"\n    {line}" for line in missing),
            expected="your data, autoencoder and feature extractor at those paths (nothing is downloaded)",
            remedy="put them there (a link will do; `dithc fetch` brings what a `search` names), or set the keys in a config "
            "file of your own and pass it as a second --configfile; config/README.md says which files each kind needs",
        )
