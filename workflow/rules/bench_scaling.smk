# Weak and strong scaling (the paper's figures 10 and 11): measured on this machine, simulated on a described machine, and
# drawn with the published values. Separate targets for any experiment: `snakemake scaling`, `snakemake simulate`.


rule measure_scaling:
    output:
        f"{W.root}/bench/scaling-{{mode}}.json",
    log:
        W.log("bench/scaling-{mode}"),
    wildcard_constraints:
        mode="weak|strong",
    conda:
        "../envs/dithc.yaml"
    threads: W.jobs.threads("bench")
    resources:
        cpus_per_node=W.jobs.threads("bench"),
        mem_mb=W.jobs.mem_mb("bench"),
        runtime=W.jobs.runtime("bench"),
        nodes=W.benches.scaling_nodes,
        tasks=W.benches.scaling_ranks,
        cpus_per_task=W.jobs.rank_cpus,
        launch=W.benches.scaling_launch,
    params:
        arguments=lambda wc: W.benches.scaling(wc.mode),
    shell:
        "dithc bench scaling {params.arguments} {resources.launch} --json {output:q} 2>&1 | tee -i {log:q}"


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
        cpus_per_node=1,
        mem_mb=W.jobs.mem_mb("bench"),
        runtime=W.jobs.runtime("bench"),
    params:
        arguments=lambda wc: W.benches.simulate(wc.what),
    shell:
        "dithc simulate {params.arguments} --json {output:q} 2>&1 | tee -i {log:q}"


rule simulate:
    input:
        W.simulated_files,


# A page of figures 10 and 11 alone, without the experiment's training runs.
use rule stepwise as scaling with:
    input:
        measured=W.measured_files + W.simulated_files,
    output:
        html=f"{W.root}/scaling/report.html",
        weak=f"{W.root}/scaling/figures/weak_scaling.png",
        strong=f"{W.root}/scaling/figures/strong_scaling.png",
    log:
        W.log("scaling"),
    params:
        config=W.config,
        option="--scaling",
