# Stage 1: scenes of any source onto one grid, with a mask.


rule stage:
    input:
        lambda wc: W.scene_input(wc.dataset),
    output:
        W.path("scenes", "{dataset}"),
    log:
        W.log("stage/{dataset}"),
    conda:
        "../envs/dithc.yaml"
    threads: 1
    resources:
        mem_mb=W.resource("stage", "mem_mb"),
        runtime=W.resource("stage", "runtime"),
    params:
        config=W.config,
        spec=lambda wc: W.spec("stage", wc.dataset),
    shell:
        "dithc stage --config {params.config} --dataset {wildcards.dataset} --inputs {input} --out {output} 2>&1 | tee -i {log}"
