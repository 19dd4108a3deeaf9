# Stage 8: the distance between generated and real images.


rule fid:
    input:
        real=lambda wc: W.path("features", W.real_set(wc.evaluation)),
        generated=W.path("features", "{evaluation}"),
    output:
        W.path("fid", "{evaluation}"),
    log:
        W.log("fid/{evaluation}"),
    conda:
        "../envs/dithc.yaml"
    threads: 1
    resources:
        mem_mb=W.resource("fid", "mem_mb"),
        runtime=W.resource("fid", "runtime"),
    params:
        config=W.config,
        spec=lambda wc: W.spec("fid", wc.evaluation),
    shell:
        "dithc fid --config {params.config} --evaluation {wildcards.evaluation} --real {input.real} "
        "--generated {input.generated} --out {output} 2>&1 | tee -i {log}"
