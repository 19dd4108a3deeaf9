# Stage 9: one self-contained report.


rule report:
    input:
        manifests=W.manifests,
        bench=W.bench_file,
    output:
        html=report(
            f"{W.root}/report.html",
            caption="../report/report.rst",
            category="Report",
        ),
        numbers=f"{W.root}/report.json",
    log:
        W.log("report"),
    conda:
        "../envs/dithc.yaml"
    threads: 1
    resources:
        mem_mb=W.resource("report", "mem_mb"),
        runtime=W.resource("report", "runtime"),
    params:
        config=W.config,
    shell:
        "dithc report --config {params.config} --manifests {input.manifests} --bench {input.bench} "
        "--out {output.html} 2>&1 | tee -i {log}"
