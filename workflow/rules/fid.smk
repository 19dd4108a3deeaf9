# Stage 8: distance between generated and real images.


rule fid:
    input:
        real=lambda wc: W.path("features", W.real_set(wc.evaluation)),
        generated=W.path("features", "{evaluation}"),
        tiles=lambda wc: W.path("tiles", W.dataset_of(wc.evaluation)),
    output:
        W.path("fid", "{evaluation}"),
    log:
        W.log("fid/{evaluation}"),
    group:
        "evaluate"
    conda:
        "../envs/dithc.yaml"
    threads: 1
    resources:
        cpus_per_node=W.jobs.group_cpus("fid"),
        mem_mb=W.jobs.mem_mb("fid"),
        runtime=W.jobs.runtime("fid"),
    params:
        config=W.config,
        spec=lambda wc: W.spec("fid", wc.evaluation),
    shell:
        "dithc fid --config {params.config:q} --evaluation {wildcards.evaluation} --real {input.real:q} "
        "--generated {input.generated:q} --tiles {input.tiles:q} --out {output:q} 2>&1 | tee -i {log:q}"
