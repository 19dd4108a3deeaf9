# Stage 9: one self-contained report.


rule report:
    input:
        manifests=W.manifests,
        bench=W.bench_file("step"),
        strategies=W.bench_file("strategies"),
        scaling=W.scaling_files,
        stepwise=W.bench_file("stepwise"),
        automem=W.bench_file("automem"),
    output:
        html=f"{W.root}/report.html",
        numbers=f"{W.root}/report.json",
        samples=f"{W.root}/figures/samples.png",
        fid=f"{W.root}/figures/fid.png",
        loss=f"{W.root}/figures/loss.png",
        throughput=f"{W.root}/figures/throughput.png",
        composites=f"{W.root}/figures/composites.png",
        stages=f"{W.root}/figures/stages.png",
        weak_scaling=f"{W.root}/figures/weak_scaling.png",
        strong_scaling=f"{W.root}/figures/strong_scaling.png",
        stepwise=f"{W.root}/figures/stepwise.png",
        memory=f"{W.root}/figures/memory.png",
        pixels=f"{W.root}/figures/pixels.png",
    log:
        W.log("report"),
    conda:
        "../envs/dithc.yaml"
    threads: 1
    resources:
        cpus_per_node=1,
        mem_mb=W.jobs.mem_mb("report"),
        runtime=W.jobs.runtime("report"),
    params:
        config=W.config,
        titles=lambda wc: W.titles,
    shell:
        "dithc report --config {params.config:q} --manifests {input.manifests:q} --bench {input.bench:q} "
        "--strategies {input.strategies:q} --stepwise {input.stepwise:q} --automem {input.automem:q} "
        "--scaling {input.scaling:q} --out {output.html:q} 2>&1 | tee -i {log:q}"
