# Stage 9: one self-contained report, and its figures for Snakemake's own.


rule report:
    input:
        manifests=W.manifests,
        paper="config/paper/reference.yaml",
        bench=W.bench_file,
        strategies=W.strategies_file,
        scaling=W.scaling_files,
        stepwise=W.stepwise_file,
        automem=W.automem_file,
        sampling=W.sampling_file,
    output:
        html=report(
            f"{W.root}/report.html",
            caption="../report/report.rst",
            category="Report",
        ),
        numbers=f"{W.root}/report.json",
        samples=report(
            f"{W.root}/figures/samples.png",
            caption="../report/samples.rst",
            category="Figures",
        ),
        fid=report(
            f"{W.root}/figures/fid.png",
            caption="../report/fid.rst",
            category="Figures",
        ),
        loss=report(
            f"{W.root}/figures/loss.png",
            caption="../report/loss.rst",
            category="Figures",
        ),
        throughput=report(
            f"{W.root}/figures/throughput.png",
            caption="../report/throughput.rst",
            category="Figures",
        ),
        composites=f"{W.root}/figures/composites.png",
        bands=report(
            f"{W.root}/figures/bands.png",
            caption="../report/bands.rst",
            category="Figures",
        ),
        stages=report(
            f"{W.root}/figures/stages.png",
            caption="../report/stages.rst",
            category="Figures",
        ),
        weak_scaling=report(
            f"{W.root}/figures/weak_scaling.png",
            caption="../report/weak_scaling.rst",
            category="Figures",
        ),
        strong_scaling=report(
            f"{W.root}/figures/strong_scaling.png",
            caption="../report/strong_scaling.rst",
            category="Figures",
        ),
        stepwise=report(
            f"{W.root}/figures/stepwise.png",
            caption="../report/stepwise.rst",
            category="Figures",
        ),
        memory=report(
            f"{W.root}/figures/memory.png",
            caption="../report/memory.rst",
            category="Figures",
        ),
        sampling=report(
            f"{W.root}/figures/sampling.png",
            caption="../report/sampling.rst",
            category="Figures",
        ),
        pixels=report(
            f"{W.root}/figures/pixels.png",
            caption="../report/pixels.rst",
            category="Figures",
        ),
    log:
        W.log("report"),
    conda:
        "../envs/dithc.yaml"
    threads: 1
    resources:
        node_cores=1,
        mem_mb=W.jobs.mem_mb("report"),
        runtime=W.jobs.runtime("report"),
    params:
        config=W.config,
        titles=lambda wc: W.titles,
    shell:
        "dithc report --config {params.config:q} --manifests {input.manifests:q} --bench {input.bench:q} "
        "--strategies {input.strategies:q} --stepwise {input.stepwise:q} --automem {input.automem:q} "
        "--scaling {input.scaling:q} --sampling {input.sampling:q} --out {output.html:q} 2>&1 | tee -i {log:q}"
