# Restored scenes: unobserved pixels sampled from a prior, given all observed pixels.


rule restore:
    input:
        unpack(lambda wc: W.restore_input(wc.restoration)),
    output:
        W.path("restorations", "{restoration}"),
    log:
        W.log("restore/{restoration}"),
    conda:
        "../envs/dithc.yaml"
    threads: W.jobs.threads("restore")
    resources:
        cpus_per_node=W.jobs.threads("restore"),
        mem_mb=lambda wc: W.jobs.mem_mb("restore", wc.restoration),
        runtime=lambda wc: W.jobs.runtime("restore", wc.restoration),
        nodes=W.jobs.machine.nodes,
        tasks=W.jobs.tasks,
        tasks_per_node=W.jobs.tasks_per_node,
        cpus_per_task=W.jobs.rank_cpus,
        mpi=W.jobs.mpi,
        launch=lambda wc: W.jobs.launch("restore", wc.restoration),
    params:
        config=W.config,
        spec=lambda wc: W.spec("restore", wc.restoration),
    shell:
        "dithc launch {resources.launch} -- dithc restore --config {params.config:q} --restoration {wildcards.restoration} "
        "--checkpoint {input.checkpoint:q} --tiles {input.tiles:q} --training {input.training:q} --scenes {input.scenes:q} "
        "--masks {input.masks:q} --codec {input.codec:q} --out {output:q} 2>&1 | tee -i {log:q}"
