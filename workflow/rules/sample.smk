# Stage 6: images from a checkpoint.


rule sample:
    input:
        checkpoint=lambda wc: W.final(W.experiment.evaluations[wc.evaluation].run),
        latents=lambda wc: W.path("latents", W.dataset_of(wc.evaluation)),
        tiles=lambda wc: W.path("tiles", W.dataset_of(wc.evaluation)),
        codec=lambda wc: W.codec_of(W.dataset_of(wc.evaluation)),
    output:
        W.path("samples", "{evaluation}"),
    log:
        W.log("sample/{evaluation}"),
    conda:
        "../envs/dithc.yaml"
    threads: W.threads("train", CORES)
    resources:
        mem_mb=W.resource("sample", "mem_mb"),
        runtime=W.resource("sample", "runtime"),
        nodes=W.machine.nodes,
        tasks=W.tasks,
        cpus_per_task=W.rank_cpus(CORES),
        mpi=W.mpi,
        launch=W.launch(CORES),
    params:
        config=W.config,
        spec=lambda wc: W.spec("sample", wc.evaluation),
    shell:
        "dithc launch {resources.launch} -- dithc sample --config {params.config} --evaluation {wildcards.evaluation} "
        "--checkpoint {input.checkpoint} --latents {input.latents} --tiles {input.tiles} --codec {input.codec} "
        "--out {output} 2>&1 | tee -i {log}"
