# Timing of a training step on this machine, and of trainings under each strategy.


rule bench:
    output:
        f"{W.root}/bench/step.json",
    log:
        W.log("bench/step"),
    conda:
        "../envs/dithc.yaml"
    threads: W.threads("bench", CORES)
    resources:
        mem_mb=W.resource("bench", "mem_mb"),
        runtime=W.resource("bench", "runtime"),
    params:
        arguments=W.bench,
    shell:
        "OMP_NUM_THREADS={threads} dithc bench step {params.arguments} --json {output} 2>&1 | tee -i {log}"


# Also a target of its own, whatever the experiment asks for: `snakemake strategies` (DiT-S/2 where it names no models).
rule strategies:
    output:
        f"{W.root}/bench/strategies.json",
    log:
        W.log("bench/strategies"),
    conda:
        "../envs/dithc.yaml"
    threads: W.threads("bench", CORES)
    resources:
        mem_mb=W.resource("bench", "mem_mb"),
        runtime=W.resource("bench", "runtime"),
    params:
        arguments=W.strategies,
    shell:
        "dithc bench strategies {params.arguments} --json {output} 2>&1 | tee -i {log}"
