# Stage 2: scenes into tiles, split by place.


rule tiles:
    input:
        scenes=W.path("scenes", "{dataset}"),
    output:
        W.path("tiles", "{dataset}"),
    log:
        W.log("tiles/{dataset}"),
    conda:
        "../envs/dithc.yaml"
    threads: 1
    resources:
        mem_mb=W.resource("tiles", "mem_mb"),
        runtime=W.resource("tiles", "runtime"),
    params:
        config=W.config,
        spec=lambda wc: W.spec("tiles", wc.dataset),
    shell:
        "dithc tiles --config {params.config} --dataset {wildcards.dataset} --scenes {input.scenes} --out {output} 2>&1 | tee -i {log}"
