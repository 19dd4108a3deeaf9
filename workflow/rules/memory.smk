# Figure 9 and the effect of AutoMem, measured on this machine. Separate targets for any experiment:
# `snakemake stepwise`, `snakemake automem` (DiT-S/2 if the experiment names no model).


use rule strategies as measure_stepwise with:
    output:
        f"{W.root}/bench/stepwise.json",
    log:
        W.log("bench/stepwise"),
    params:
        arguments=W.benches.stepwise,


use rule strategies as measure_automem with:
    output:
        f"{W.root}/bench/automem.json",
    log:
        W.log("bench/automem"),
    params:
        arguments=W.benches.automem,


# A page of figure 9 alone, without the experiment's training runs.
rule stepwise:
    input:
        measured=f"{W.root}/bench/stepwise.json",
    output:
        html=f"{W.root}/stepwise/report.html",
        figure=f"{W.root}/stepwise/figures/stepwise.png",
    log:
        W.log("stepwise"),
    conda:
        "../envs/dithc.yaml"
    threads: 1
    resources:
        cpus_per_node=1,
        mem_mb=W.jobs.mem_mb("report"),
        runtime=W.jobs.runtime("report"),
    params:
        config=W.config,
        option="--stepwise",
    shell:
        "dithc report --config {params.config:q} {params.option} {input.measured:q} --out {output.html:q} 2>&1 | tee -i {log:q}"


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
