# The effect of AutoMem, measured on this machine. A separate target for any experiment: `snakemake automem` (DiT-S/2 if the
# experiment names no model).


use rule strategies as measure_automem with:
    output:
        f"{W.root}/bench/automem.json",
    log:
        W.log("bench/automem"),
    params:
        arguments=W.benches.automem,


# A page of both memory tiers alone.
use rule stepwise as automem with:
    input:
        measured=f"{W.root}/bench/automem.json",
    output:
        html=f"{W.root}/automem/report.html",
        figure=f"{W.root}/automem/figures/memory.png",
    log:
        W.log("automem"),
    params:
        config=W.config,
        option="--automem",
