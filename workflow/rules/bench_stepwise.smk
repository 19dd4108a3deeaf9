# Figure 9, measured on this machine. A separate target for any experiment: `snakemake stepwise` (DiT-S/2 if the experiment
# names no model). Other benchmarks reuse its page by `use rule`.


use rule strategies as measure_stepwise with:
    output:
        f"{W.root}/bench/stepwise.json",
    log:
        W.log("bench/stepwise"),
    params:
        arguments=W.benches.stepwise,


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
