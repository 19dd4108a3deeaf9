# Stage 2: scenes cut into tiles, split by location.


rule tiles:
    input:
        scenes=W.path("scenes", "{dataset}"),
    output:
        W.path("tiles", "{dataset}"),
    log:
        W.log("tiles/{dataset}"),
    group:
        "prepare"
    conda:
        "../envs/dithc.yaml"
    threads: 1
    resources:
        cpus_per_node=1,
        mem_mb=lambda wc: W.jobs.mem_mb("tiles", wc.dataset),
        runtime=lambda wc: W.jobs.runtime("tiles", wc.dataset),
    params:
        config=W.config,
        spec=lambda wc: W.spec("tiles", wc.dataset),
    shell:
        "dithc tiles --config {params.config:q} --dataset {wildcards.dataset} --scenes {input.scenes:q} --out {output:q} 2>&1 | tee -i {log:q}"
