# Stage 1: scenes of any source on one grid, with a mask.
#
# Every result depends on this rule. Its input function therefore also checks for damaged results while Snakemake plans.


rule ingest:
    input:
        lambda wc: W.scene_input_in_plan(wc.dataset),
    output:
        W.path("scenes", "{dataset}"),
    log:
        W.log("ingest/{dataset}"),
    group:
        "prepare"
    conda:
        "../envs/dithc.yaml"
    threads: W.jobs.threads("ingest")
    resources:
        cpus_per_node=W.jobs.threads("ingest"),
        mem_mb=lambda wc: W.jobs.mem_mb("ingest", wc.dataset),
        runtime=lambda wc: W.jobs.runtime("ingest", wc.dataset),
    params:
        config=W.config,
        spec=lambda wc: W.spec("ingest", wc.dataset),
    shell:
        "dithc ingest --config {params.config:q} --dataset {wildcards.dataset} --inputs {input:q} --workers {threads} --out {output:q} 2>&1 | tee -i {log:q}"
