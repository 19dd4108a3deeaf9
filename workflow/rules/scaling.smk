# Weak and strong scaling, the paper's figures 10 and 11: measured on this machine, simulated on a described one, and drawn
# with what is published. Targets of their own, whatever the experiment asks for: `snakemake scaling`, `snakemake simulate`.


rule measure_scaling:
    output:
        f"{W.root}/bench/scaling-{{mode}}.json",
    log:
        W.log("bench/scaling-{mode}"),
    wildcard_constraints:
        mode="weak|strong",
    conda:
        "../envs/dithc.yaml"
    threads: W.threads("bench", CORES)
    resources:
        mem_mb=W.resource("bench", "mem_mb"),
        runtime=W.resource("bench", "runtime"),
        nodes=W.scaling_nodes,
        tasks=W.scaling_ranks,
        cpus_per_task=W.rank_cpus(CORES),
    params:
        arguments=lambda wc: W.scaling(wc.mode),
    shell:
        "dithc bench scaling {params.arguments} --json {output} 2>&1 | tee -i {log}"


rule simulate_scaling:
    output:
        f"{W.root}/bench/simulated-{{what}}.json",
    log:
        W.log("bench/simulated-{what}"),
    wildcard_constraints:
        what="paper|weak|strong",
    conda:
        "../envs/dithc.yaml"
    threads: 1
    resources:
        mem_mb=W.resource("bench", "mem_mb"),
        runtime=W.resource("bench", "runtime"),
    params:
        arguments=lambda wc: W.simulate(wc.what),
    shell:
        "dithc simulate {params.arguments} --json {output} 2>&1 | tee -i {log}"


rule simulate:
    input:
        W.simulated_files,


# Figures 10 and 11 without the trainings of the experiment: a page of them alone.
rule scaling:
    input:
        measured=W.measured_files,
        simulated=W.simulated_files,
        paper="config/paper/reference.yaml",
    output:
        html=f"{W.root}/scaling/report.html",
        weak=f"{W.root}/scaling/figures/weak_scaling.png",
        strong=f"{W.root}/scaling/figures/strong_scaling.png",
    log:
        W.log("scaling"),
    conda:
        "../envs/dithc.yaml"
    threads: 1
    resources:
        mem_mb=W.resource("report", "mem_mb"),
        runtime=W.resource("report", "runtime"),
    params:
        config=W.config,
    shell:
        "dithc report --config {params.config} --scaling {input.measured} {input.simulated} --out {output.html} "
        "2>&1 | tee -i {log}"
