# Stage 1: scenes of any source on one grid, with a mask.
#
# Every result depends on this rule. Its input function therefore also checks for damaged results while Snakemake plans.


rule stage:
    input:
        lambda wc: W.scene_input_in_plan(wc.dataset),
    output:
        W.path("scenes", "{dataset}"),
    log:
        W.log("stage/{dataset}"),
    group:
        "prepare"
    conda:
        "../envs/dithc.yaml"
    threads: W.jobs.threads("stage")
    resources:
        cpus_per_node=W.jobs.threads("stage"),
        mem_mb=lambda wc: W.jobs.mem_mb("stage", wc.dataset),
        runtime=lambda wc: W.jobs.runtime("stage", wc.dataset),
    params:
        config=W.config,
        spec=lambda wc: W.spec("stage", wc.dataset),
    shell:
        "dithc stage --config {params.config:q} --dataset {wildcards.dataset} --inputs {input:q} --threads {threads} --out {output:q} 2>&1 | tee -i {log:q}"
