# Timing of a training step on this machine.


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
