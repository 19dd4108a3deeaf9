# Stage 6: images sampled from a checkpoint.


rule sample:
    input:
        unpack(lambda wc: W.sample_input(wc.evaluation)),
    output:
        W.path("samples", "{evaluation}"),
    log:
        W.log("sample/{evaluation}"),
    conda:
        "../envs/dithc.yaml"
    threads: W.jobs.threads("sample")
    resources:
        cpus_per_node=W.jobs.threads("sample"),
        mem_mb=lambda wc: W.jobs.mem_mb("sample", wc.evaluation),
        runtime=lambda wc: W.jobs.runtime("sample", wc.evaluation),
        nodes=W.jobs.machine.nodes,
        tasks=W.jobs.tasks,
        tasks_per_node=W.jobs.tasks_per_node,
        cpus_per_task=W.jobs.rank_cpus,
        mpi=W.jobs.mpi,
        launch=lambda wc: W.jobs.launch("sample", wc.evaluation),
    params:
        config=W.config,
        spec=lambda wc: W.spec("sample", wc.evaluation),
    shell:
        "dithc launch {resources.launch} -- dithc sample --config {params.config:q} --evaluation {wildcards.evaluation} "
        "--checkpoint {input.checkpoint:q} --latents {input.latents:q} --tiles {input.tiles:q} --codec {input.codec:q} "
        "--out {output:q} 2>&1 | tee -i {log:q}"
