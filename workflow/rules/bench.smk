# Benchmarks of a training step, and of training runs with each strategy, on this machine.


rule bench:
    output:
        f"{W.root}/bench/step.json",
    log:
        W.log("bench/step"),
    conda:
        "../envs/dithc.yaml"
    threads: W.jobs.threads("bench")
    resources:
        cpus_per_node=W.jobs.threads("bench"),
        mem_mb=W.jobs.mem_mb("bench"),
        runtime=W.jobs.runtime("bench"),
    params:
        arguments=W.benches.step,
    shell:
        "OMP_NUM_THREADS={threads} dithc bench {params.arguments} --json {output:q} 2>&1 | tee -i {log:q}"


# Also a separate target for any experiment: `snakemake strategies` (DiT-S/2 if the experiment names no models).
rule strategies:
    output:
        f"{W.root}/bench/strategies.json",
    log:
        W.log("bench/strategies"),
    conda:
        "../envs/dithc.yaml"
    threads: W.jobs.threads("bench")
    resources:
        cpus_per_node=W.jobs.threads("bench"),
        mem_mb=W.jobs.mem_mb("bench"),
        runtime=W.jobs.runtime("bench"),
    params:
        arguments=W.benches.strategies,
    shell:
        "dithc bench {params.arguments} --json {output:q} 2>&1 | tee -i {log:q}"
