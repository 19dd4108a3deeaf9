# Stage 5: fine-tuning from the weights of another run or from a file; otherwise the same as pretrain.


use rule pretrain as finetune with:
    wildcard_constraints:
        run="|".join(W.finetunings) or "(?!)",
