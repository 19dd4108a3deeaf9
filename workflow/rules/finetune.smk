# Stage 5: training that starts from another run's weights or from a file; otherwise as pretrain.


use rule pretrain as finetune with:
    wildcard_constraints:
        run="|".join(W.finetunings) or "(?!)",
