# Stage 0: generated inputs, for data sets that ask for them.


rule synthesize:
    output:
        W.path("inputs", "{dataset}"),
    log:
        W.log("synthesize/{dataset}"),
    conda:
        "../envs/dithc.yaml"
    threads: 1
    resources:
        mem_mb=W.resource("synthesize", "mem_mb"),
        runtime=W.resource("synthesize", "runtime"),
    params:
        config=W.config,
        spec=lambda wc: W.spec("synthesize", wc.dataset),
    shell:
        "dithc synthesize --config {params.config} --dataset {wildcards.dataset} --out {output} 2>&1 | tee -i {log}"
