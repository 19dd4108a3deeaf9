# Stage 0: generated inputs, for synthetic datasets.


rule synthesize:
    output:
        W.path("inputs", "{dataset}"),
    log:
        W.log("synthesize/{dataset}"),
    group:
        "prepare"
    conda:
        "../envs/dithc.yaml"
    threads: 1
    resources:
        cpus_per_node=1,
        mem_mb=lambda wc: W.jobs.mem_mb("synthesize", wc.dataset),
        runtime=lambda wc: W.jobs.runtime("synthesize", wc.dataset),
    params:
        config=W.config,
        spec=lambda wc: W.spec("synthesize", wc.dataset),
    shell:
        "dithc synthesize --config {params.config:q} --dataset {wildcards.dataset} --out {output:q} 2>&1 | tee -i {log:q}"
