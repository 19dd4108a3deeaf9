/* One line per kernel, best first within an operator: dispatch, tests and bench read this table and nothing else.
 *
 * HC_KERNEL(op, dtype, isa, ISA) stands for the function hc_<op>_<dtype>_<isa> in <folder>/<op>_<dtype>_<isa>.c.
 * No include guard: define HC_KERNEL, include this file, undefine it. */
HC_KERNEL(sumsq, f32, ref, HC_ISA_REF)
