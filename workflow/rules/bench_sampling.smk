# One image sampled by one rank and by several, measured on this machine. A separate target for any experiment:
# `snakemake sampling` (DiT-S/2 if the experiment names no model).


use rule strategies as measure_sampling with:
    output:
        f"{W.root}/bench/sampling.json",
    log:
        W.log("bench/sampling"),
    params:
        arguments=W.benches.sampling,


# A page of this measurement alone, without the experiment's training runs.
use rule stepwise as sampling with:
    input:
        measured=f"{W.root}/bench/sampling.json",
    output:
        html=f"{W.root}/sampling/report.html",
        figure=f"{W.root}/sampling/figures/sampling.png",
    log:
        W.log("sampling"),
    params:
        config=W.config,
        option="--sampling",
