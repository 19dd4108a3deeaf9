# Tables and figures of the paper. Each cell is one command in one job; a target collects cells in a document; a page shows
# documents. Separate targets: `snakemake table1` ... `table4`, `fig7` ... `fig11`, `sec56`, and `paper` for all of
# `paper.targets`.


wildcard_constraints:
    target=W.paper.names,
    cell="[a-z0-9-]+",


# A measuring cell uses all cores of its node, so that no other cell runs there at the same time.
rule paper_cell:
    input:
        lambda wc: W.paper.before(wc.target, wc.cell),
    output:
        W.paper.cell("{target}", "{cell}"),
    log:
        W.log("paper/{target}/{cell}"),
    conda:
        "../envs/dithc.yaml"
    threads: lambda wc: W.paper.threads(wc.target, wc.cell)
    resources:
        cpus_per_node=lambda wc: W.paper.threads(wc.target, wc.cell),
        mem_mb=W.jobs.mem_mb("bench"),
        runtime=lambda wc: W.paper.runtime(wc.target, wc.cell),
        nodes=lambda wc: W.paper.job(wc.target, wc.cell).nodes,
        tasks=lambda wc: W.paper.job(wc.target, wc.cell).ranks,
        cpus_per_task=lambda wc: W.paper.task_cpus(wc.target, wc.cell),
        node=W.paper.of_node,
    params:
        config=W.config,
        command=lambda wc: W.paper.job(wc.target, wc.cell).command,
    shell:
        "OMP_NUM_THREADS={threads} dithc reproduce {wildcards.target} --config {params.config:q} {resources.node} "
        "--cell {wildcards.cell} --out {output:q} 2>&1 | tee -i {log:q}"


rule paper_target:
    input:
        cells=lambda wc: W.paper.cells(wc.target),
        scores=lambda wc: W.paper_scores(wc.target),
        pictures=lambda wc: W.paper_pictures(wc.target),
    output:
        json=W.paper.document("{target}"),
        csv=f"{W.paper.root}/{{target}}.csv",
        svg=f"{W.paper.root}/{{target}}.svg",
        png=f"{W.paper.root}/{{target}}.png",
    log:
        W.log("paper/{target}"),
    conda:
        "../envs/dithc.yaml"
    threads: 1
    resources:
        cpus_per_node=1,
        mem_mb=W.jobs.mem_mb("report"),
        runtime=W.jobs.runtime("report"),
        again=lambda wc: W.paper.again(wc.target),
    params:
        config=W.config,
        node=W.paper.of_node,
        cells=lambda wc: f"{W.paper.root}/cells/{wc.target}",
        plan=lambda wc: W.paper.skipped(wc.target),
    shell:
        "dithc reproduce {wildcards.target} --config {params.config:q} {params.node} --cells {params.cells:q} "
        "--scores {input.scores:q} --mosaics {input.pictures:q} --command {resources.again:q} --out {output.json:q} "
        "2>&1 | tee -i {log:q}"


rule paper:
    input:
        W.paper.documents,
    output:
        f"{W.paper.root}/report.html",
    log:
        W.log("paper/report"),
    conda:
        "../envs/dithc.yaml"
    threads: 1
    resources:
        cpus_per_node=1,
        mem_mb=W.jobs.mem_mb("report"),
        runtime=W.jobs.runtime("report"),
    shell:
        "dithc reproduce page --results {input:q} --out {output:q} 2>&1 | tee -i {log:q}"


# Each target alone, with its page.
for target in W.paper.names.split("|"):

    rule:
        name:
            target
        input:
            W.paper.page(target),
        localrule: True


use rule paper as paper_page with:
    input:
        W.paper.document("{target}"),
    output:
        f"{W.paper.root}/{{target}}.html",
    log:
        W.log("paper/{target}-page"),
